"""This user's processes, from /proc: environment, ancestry, mapped segments."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil

SHARED_MEMORY = Path("/dev/shm")

_PROC = Path("/proc")
_GONE_SUFFIX = " (deleted)"
_SETTLE_S = 0.01
"""Time within which a killed process is usually gone."""


def marked(*entries: str) -> list[psutil.Process]:
    """Return this user's running processes that have all ``entries`` (``NAME=value``) in their environment.

    That is the environment at exec: a forked process shows its parent's, one started by ``env -i`` shows none.
    """
    wanted = {os.fsencode(entry) for entry in entries}
    return _processes(pid for pid in _own_pids() if wanted <= _environment(pid))


def tree(pid: int) -> list[psutil.Process]:
    """Return the process and all its descendants; empty if it has ended."""
    with suppress(psutil.NoSuchProcess):
        root = psutil.Process(pid)
        return [root, *root.children(recursive=True)]
    return []


def children(pid: int) -> list[int]:
    """Return the pids of a process's children; cheap enough to call often if the kernel lists them."""
    with suppress(FileNotFoundError):  # it has ended, or this kernel has no such file
        return [int(child) for child in (_PROC / str(pid) / "task" / str(pid) / "children").read_text().split()]
    with suppress(psutil.NoSuchProcess):
        return [child.pid for child in psutil.Process(pid).children()]
    return []


def session(leader: int) -> list[psutil.Process]:
    """Return this user's running processes in the session of ``leader``."""
    return _processes(pid for pid in _own_pids() if _session(pid) == leader)


def kill(processes: Iterable[psutil.Process]) -> None:
    """Send SIGKILL to each; one that has ended is skipped, even if its pid has been reused."""
    for process in processes:
        with suppress(psutil.Error):
            process.kill()


def kill_marked(*entries: str, limit_s: float = 5.0) -> list[int]:
    """Kill all :func:`marked` processes until no new ones turn up; returns the pids that survive for ``limit_s``."""
    deadline_s = time.monotonic() + limit_s
    while found := marked(*entries):
        kill(found)
        time.sleep(_SETTLE_S)
        if time.monotonic() > deadline_s:
            return [process.pid for process in found]
    return []


def is_stopped(pid: int) -> bool:
    """Return whether the process is stopped (SIGSTOP, SIGTSTP) or traced."""
    return _status(pid) in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)


def is_traced(pid: int) -> bool:
    """Return whether a debugger or tracer has stopped the process."""
    return _status(pid) == psutil.STATUS_TRACING_STOP


def _status(pid: int) -> str:
    with suppress(psutil.NoSuchProcess):
        return str(psutil.Process(pid).status())
    return ""


def cpu_s(pid: int) -> float:
    """Return the CPU time that the process has used; 0 if it has ended."""
    with suppress(psutil.NoSuchProcess):
        times = psutil.Process(pid).cpu_times()
        return float(times.user + times.system)
    return 0.0


def is_working(process: psutil.Process) -> bool:
    """Return whether the process computes, waits for a processor to do so, or for a disk."""
    with suppress(psutil.Error):
        return process.status() in (psutil.STATUS_RUNNING, psutil.STATUS_DISK_SLEEP)
    return False


def segments(pid: int) -> set[str]:
    """Return the names under /dev/shm that the process has mapped; empty if it has ended."""
    prefix = f"{SHARED_MEMORY}/"
    try:
        lines = (_PROC / str(pid) / "maps").read_text(errors="surrogateescape").splitlines()
    except OSError:
        return set()
    paths = (line.split(maxsplit=5)[5] for line in lines if prefix in line)
    return {path[len(prefix) :] for path in paths if path.startswith(prefix) and not path.endswith(_GONE_SUFFIX)}


def unlink_segments(names: Iterable[str]) -> None:
    """Remove the segments that exist and belong to this user."""
    for name in names:
        path = SHARED_MEMORY / name
        with suppress(FileNotFoundError):
            if path.lstat().st_uid == os.getuid():
                path.unlink()


def _processes(pids: Iterable[int]) -> list[psutil.Process]:
    found = []
    for pid in pids:
        with suppress(psutil.NoSuchProcess):
            found.append(psutil.Process(pid))
    return found


def _own_pids() -> Iterator[int]:
    user = os.getuid()
    for entry in os.scandir(_PROC):
        with suppress(FileNotFoundError):
            if entry.name.isdecimal() and entry.stat().st_uid == user:
                yield int(entry.name)


def _session(pid: int) -> int:
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return -1


def _environment(pid: int) -> set[bytes]:
    try:
        return set((_PROC / str(pid) / "environ").read_bytes().split(b"\0"))
    except OSError:
        return set()
