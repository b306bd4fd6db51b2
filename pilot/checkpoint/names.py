"""The names in a checkpoint directory: checkpoints, their parts, their next steps, and temporary files of writers."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from os import getpid
from pathlib import Path
from typing import NamedTuple

from pilot.core.errors import Unreadable
from pilot.host.private_folder import shown

_STEM = r"g(?P<generation>[0-9]{6,})-s(?P<step>[0-9]{8,})"
_CHECKPOINT = re.compile(_STEM + r"\.h5")
_PART = re.compile(_STEM + r"\.part[0-9]+of[0-9]+\.h5")
_NEXT = re.compile(_STEM + r"\.next")
_ANY = re.compile(r"\.?g(?P<generation>[0-9]{6,15})-s[0-9]{8,}.*")
_TEMPORARY = re.compile(
    r"\.(?P<target>g[0-9]+-s[0-9]+[^/]*\.(h5|next))\.(?P<pid>[0-9]+)-(?P<started>[0-9]+)@(?P<host>[^/]*)\.tmp"
)


class Age(NamedTuple):
    """The order of checkpoints: the newest has the highest generation, then the highest step."""

    generation: int
    step: int


@dataclass(frozen=True, slots=True)
class FileEntry:
    """One checkpoint, part or next step."""

    path: Path
    age: Age


@dataclass(frozen=True, slots=True)
class Temporary:
    """A file that a writer is writing under the name of ``target``, or was writing when it died. ``started``
    distinguishes processes with the same pid."""

    path: Path
    target: str
    pid: int
    started: int
    host: str


def checkpoint_name(generation: int, step: int) -> str:
    """``g000003-s00001200.h5``; sorting by name sorts by age."""
    return f"g{generation:06d}-s{step:08d}.h5"


def part_name(generation: int, step: int, part: int, parts: int) -> str:
    """``g000003-s00001200.part0of4.h5``."""
    return f"g{generation:06d}-s{step:08d}.part{part}of{parts}.h5"


def is_next(name: str) -> bool:
    """Whether this is the name of a file about the step after a checkpoint."""
    return _NEXT.fullmatch(name) is not None


def next_name(generation: int, step: int) -> str:
    """``g000003-s00001200.next``, the file about the step after a checkpoint."""
    return f"g{generation:06d}-s{step:08d}.next"


def doubtful_name(name: str) -> str:
    """The name of a checkpoint that must not be resumed from: it is no longer listed or loaded."""
    return f"{name}.doubtful"


def temporary_name(target: str) -> str:
    """The hidden name under which this process writes ``target`` before it renames it."""
    pid = getpid()
    return f".{target}.{pid}-{started_ticks(pid)}@{socket.gethostname()}.tmp"


def age_of(name: str) -> Age | None:
    """The age according to a checkpoint's file name; None for any other name (such as a user's copy)."""
    match = _CHECKPOINT.fullmatch(name)
    return _age(match) if match else None


def is_part(name: str) -> bool:
    """Whether this is the file name of a part."""
    return _PART.fullmatch(name) is not None


def checkpoints(directory: Path) -> list[FileEntry]:
    """All checkpoints by name, newest first; parts are not checkpoints."""
    return sorted(_entries(directory, _CHECKPOINT), key=lambda entry: entry.age, reverse=True)


def parts(directory: Path) -> list[FileEntry]:
    """All parts."""
    return _entries(directory, _PART)


def highest_generation(directory: Path) -> int:
    """The highest generation of which there is any file, finished or not; 0 if there is none. Nobody wrote one with
    more than 15 digits."""
    return max((int(match["generation"]) for _, match in _matching(directory, _ANY)), default=0)


def next_steps(directory: Path) -> list[FileEntry]:
    """All files about the steps after checkpoints."""
    return _entries(directory, _NEXT)


def temporaries(directory: Path) -> list[Temporary]:
    """All temporary files."""
    return [
        Temporary(path, match["target"], int(match["pid"]), int(match["started"]), match["host"])
        for path, match in _matching(directory, _TEMPORARY)
    ]


def started_ticks(pid: int) -> int | None:
    """When the process started, in clock ticks since boot; None if there is no such process."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return int(stat.rpartition(")")[2].split()[19])


def _age(match: re.Match[str]) -> Age:
    return Age(int(match["generation"]), int(match["step"]))


def _entries(directory: Path, pattern: re.Pattern[str]) -> list[FileEntry]:
    return [FileEntry(path, _age(match)) for path, match in _matching(directory, pattern)]


def _matching(directory: Path, pattern: re.Pattern[str]) -> Iterator[tuple[Path, re.Match[str]]]:
    try:
        names = sorted(path.name for path in directory.iterdir())
    except OSError as error:
        raise Unreadable(f"cannot read the folder {shown(directory)}: {error.strerror}") from None
    for name in names:
        if match := pattern.fullmatch(name):
            yield directory / name, match
