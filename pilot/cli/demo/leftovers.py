"""What a pool has left on this host: processes, shared-memory segments, directories of agents that are gone."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil

from pilot.agent import workdir
from pilot.comm.mpich import is_segment
from pilot.io.proc import SHARED_MEMORY

SETTLE_S = 10.0
"""The last guardian ends some moments after its agent; what is still there after this stays."""


def unowned() -> set[str]:
    """What belongs to no living process of this user: segments named as MPICH names those of our ranks, and directories
    of agents. (What other libraries keep in shared memory is theirs.)
    """
    mapped = {path for process in psutil.process_iter() for path in _mapped(process)}
    segments = (str(p) for p in SHARED_MEMORY.iterdir() if is_segment(p.name) and _mine(p))
    return {path for path in segments if path not in mapped} | set(map(str, workdir.left_over()))


def left_behind(root: Path, before: set[str]) -> list[str]:
    """What the pool in ``root`` has left, after a while for the last processes to go; empty where all is well.

    ``before`` is what was :func:`unowned` when it began.
    """
    deadline = time.monotonic() + SETTLE_S
    while True:
        left = [*_processes(root), *sorted(unowned() - before)]
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(0.1)


def _processes(root: Path) -> Iterator[str]:
    """Processes of this user that know the pool's run directory, from their command line or environment."""
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.pid == os.getpid() or process.uids().real != os.getuid():
                continue
            knows = str(root) in " ".join([*process.cmdline(), *process.environ().values()])
            if knows and process.status() != psutil.STATUS_ZOMBIE:
                yield f"process {process.pid}: {' '.join(process.cmdline())[:80]}"


def _mapped(process: psutil.Process) -> list[str]:
    with suppress(psutil.Error):
        return [m.path for m in process.memory_maps() if m.path.startswith(f"{SHARED_MEMORY}/")]
    return []


def _mine(path: Path) -> bool:
    with suppress(OSError):
        return path.stat().st_uid == os.getuid()
    return False
