"""What a pool left behind on this host: processes, shared-memory segments, directories of agents that are gone."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil

from pilot.agent import workdir
from pilot.comm.mpich import is_segment
from pilot.host.proc import SHARED_MEMORY

SETTLE_S = 10.0
"""The last guardian ends shortly after its agent; anything still there after this time is a leftover."""


def unowned() -> set[str]:
    """Leftovers of no living process of this user: segments named as MPICH names those of our ranks, and
    directories of agents. (What other libraries keep in shared memory is up to them.)
    """
    mapped = {path for process in psutil.process_iter() for path in _mapped(process)}
    segments = (str(p) for p in SHARED_MEMORY.iterdir() if is_segment(p.name) and _mine(p))
    return {path for path in segments if path not in mapped} | set(map(str, workdir.left_over()))


def left_behind(root: Path, before: set[str]) -> list[str]:
    """Leftovers of the pool in ``root``, after giving its last processes time to end; empty if all is well.

    ``before`` is what :func:`unowned` returned before the pool started.
    """
    deadline = time.monotonic() + SETTLE_S
    while True:
        left = [*_processes(root), *sorted(unowned() - before)]
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(0.1)


def _processes(root: Path) -> Iterator[str]:
    """This user's processes whose command line or environment names the pool's run directory."""
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
