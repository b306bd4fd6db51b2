"""Limits what pilots leave in the run directory: files of ended jobs, logs of pilots that have left.

A pool that is up for weeks has thousands of pilots; each job has up to four files (script, output, errors, status),
each pilot a log per trainer. The newest stay, because people need those. A file that a running pilot writes to is never
removed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

from pilot.core.ids import NodeId
from pilot.rundir import trainer_folder
from pilot.service.agents.admission import SUFFIX

EVERY_S = 600.0

KEPT = 200
KEPT_BYTES = 1 << 30
"""The files of this many ended jobs stay, and per trainer the logs of this many pilots; both are limited in bytes, too.
The newest come first."""

_FILE_OF_JOB = re.compile(r"(?P<job>pilot-[0-9a-f]{10}\.[0-9]+\.[0-9]+)(\.[a-z.]*)?")
"""Parsl's file names: the pool's name, the time, and the kind (script, output, …)."""

_LOG = re.compile(r"(?P<node>.+?)(\.[0-9]+)?\.log(\.1)?(\.times)?")
"""``<node>.log``, ``<node>.<local rank>.log``; ``.1`` is the rotated part, ``.times`` has the marks."""

_TOKEN_FILE = re.compile(rf"[A-Za-z0-9_-]+{re.escape(SUFFIX)}")
_SCRIPT_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class _Files:
    """Files that are kept or removed together; ``written_s`` is when the newest was last written."""

    paths: tuple[Path, ...]
    written_s: float
    bytes: int


def tidy(pilots: Path, logs: Iterable[tuple[Path, str]], here: Collection[NodeId]) -> int:
    """Remove what exceeds the limits; returns the number of files. Blocks on the disk.

    Parameters
    ----------
    pilots : the folder of the jobs' files
    logs : the trainers' folders of logs, each with the trainer's uid
    here : the nodes that are in the pool; all others have left
    """
    gone = _remove([files for files in _beyond(_files_of(pilots, _job_of)) if _is_over(pilots, files)])
    for folder, uid in logs:
        with suppress(OSError), trainer_folder.held(folder, uid) as place:
            gone += _remove(_beyond(_files_of(place, lambda path: _node_of(path, here))))
    return gone


def _remove(beyond: list[_Files]) -> int:
    gone = [path for files in beyond for path in files.paths]
    for path in gone:
        with suppress(OSError):
            path.unlink()
    return len(gone)


def _files_of(folder: Path, key_of: Callable[[Path], str]) -> list[_Files]:
    """The files in ``folder`` by key ("": not ours), last written first."""
    found: dict[str, list[Path]] = {}
    with suppress(OSError):
        for path in folder.iterdir():
            if key := key_of(path):
                found.setdefault(key, []).append(path)
    return sorted(map(_described, found.values()), key=lambda files: files.written_s, reverse=True)


def _described(paths: list[Path]) -> _Files:
    stats = []
    for path in paths:
        with suppress(OSError):
            stats.append(path.stat())
    return _Files(tuple(paths), max((s.st_mtime for s in stats), default=0.0), sum(s.st_size for s in stats))


def _beyond(found: list[_Files]) -> list[_Files]:
    """The files beyond the limits. The input is sorted newest first; the very newest stays whatever its size."""
    sizes = accumulate(files.bytes for files in found)
    counted = enumerate(zip(found, sizes, strict=True))
    return [files for n, (files, size) in counted if n >= KEPT or (n and size > KEPT_BYTES)]


def _job_of(path: Path) -> str:
    match = _FILE_OF_JOB.fullmatch(path.name)
    return match["job"] if match else ""


def _is_over(pilots: Path, files: _Files) -> bool:
    """Whether the job is over: its script names its connection file, which is removed then."""
    for path in files.paths:
        with suppress(OSError), path.open("rb") as file:
            named = _TOKEN_FILE.findall(file.read(_SCRIPT_BYTES).decode(errors="replace"))
            if any((pilots / name).exists() for name in named):
                return False
    return True


def _node_of(path: Path, here: Collection[NodeId]) -> str:
    """The node that wrote this log; "" if it is in the pool."""
    match = _LOG.fullmatch(path.name)
    return match["node"] if match and NodeId(match["node"]) not in here else ""
