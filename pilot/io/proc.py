"""What /proc says about this user's processes: environment, ancestry, mapped segments.

Two system calls that Python does not offer. Standard library only, because the fork server imports it.

Ended children of this process. Standard library only: scripts' interpreters import it.

Which descriptors can be read. Unlike ``select.select``, works for descriptors above 1023.
"""

from __future__ import annotations

import ctypes
import math
import os
import select
import signal
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

SHARED_MEMORY = Path("/dev/shm")

_PROC = Path("/proc")
_GONE_SUFFIX = " (deleted)"
_SETTLE_S = 0.01
"""Time within which a killed process is usually gone."""


def marked(*entries: str) -> list[psutil.Process]:
    """This user's running processes that have all ``entries`` (``NAME=value``) in their environment.

    That is the environment at exec: a forked process shows its parent's, one started by ``env -i`` shows none.
    """
    wanted = {os.fsencode(entry) for entry in entries}
    return [process for pid in _own_pids() if wanted <= _environment(pid) and (process := _process(pid))]


def tree(pid: int) -> list[psutil.Process]:
    """The process and all its descendants; empty if it has ended."""
    root = _process(pid)
    if root is None:
        return []
    try:
        return [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def children(pid: int) -> list[int]:
    """The pids of a process's children; cheap enough to call often if the kernel lists them."""
    try:
        return [int(child) for child in (_PROC / str(pid) / "task" / str(pid) / "children").read_text().split()]
    except FileNotFoundError:  # it has ended, or this kernel has no such file
        process = _process(pid)
    try:
        return [child.pid for child in process.children()] if process is not None else []
    except psutil.NoSuchProcess:
        return []


def session(leader: int) -> list[psutil.Process]:
    """This user's running processes in the session of ``leader``."""
    return [process for pid in _own_pids() if _session(pid) == leader and (process := _process(pid))]


def kill(processes: Iterable[psutil.Process]) -> None:
    """Send SIGKILL to each; one that has ended is skipped, even if its pid has been reused."""
    for process in processes:
        try:
            process.kill()
        except psutil.Error:
            continue


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
    """Whether the process is stopped (SIGSTOP, SIGTSTP) or traced."""
    process = _process(pid)
    try:
        return process is not None and process.status() in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)
    except psutil.NoSuchProcess:
        return False


def segments(pid: int) -> set[str]:
    """Names under /dev/shm that the process has mapped; empty if it has ended."""
    prefix = f"{SHARED_MEMORY}/"
    try:
        lines = (_PROC / str(pid) / "maps").read_text(errors="surrogateescape").splitlines()
    except OSError:
        return set()
    paths = (line.split(maxsplit=5)[5] for line in lines if prefix in line)
    return {path[len(prefix) :] for path in paths if path.startswith(prefix) and not path.endswith(_GONE_SUFFIX)}


def unlink_segments(names: Iterable[str]) -> None:
    """Remove those of the segments that exist and belong to this user."""
    for name in names:
        path = SHARED_MEMORY / name
        try:
            if path.lstat().st_uid == os.getuid():
                path.unlink()
        except FileNotFoundError:
            continue


def _process(pid: int) -> psutil.Process | None:
    try:
        return psutil.Process(pid)
    except psutil.NoSuchProcess:
        return None


def _own_pids() -> Iterator[int]:
    user = os.getuid()
    for entry in os.scandir(_PROC):
        try:
            if entry.name.isdecimal() and entry.stat().st_uid == user:
                yield int(entry.name)
        except FileNotFoundError:
            continue


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


_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36

_libc = ctypes.CDLL(None, use_errno=True)


def become_subreaper() -> None:
    """From now on, orphaned descendants become children of this process instead of init's."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when ``parent`` ends (more precisely: the thread of it that forked).

    Survives exec, but not fork. Ends the process at once if ``parent`` has already ended.
    """
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def _prctl(option: int, value: int) -> None:
    if _libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0) != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"prctl({option}): {os.strerror(error)}")


def reap(own: Iterable[int] = ()) -> list[tuple[int, int]]:
    """Reap ended children other than ``own``; (pid, wait status) of each.

    The kernel names them in any order. Those ended by a signal come first, because a process that is killed makes its
    neighbours fail.
    """
    return _killed_first(_reaped(set(own)))


def reap_among(children: Iterable[int]) -> list[tuple[int, int]]:
    """Like :func:`reap`, but of these children; no harm if a signal's handler has reaped one meanwhile."""
    return _killed_first(end for pid in list(children) for end in _reaped_one(pid))


def _killed_first(ends: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    return sorted(ends, key=lambda end: not os.WIFSIGNALED(end[1]))


def _reaped_one(child: int) -> Iterator[tuple[int, int]]:
    with suppress(ChildProcessError):
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            yield pid, status


def _reaped(known: set[int]) -> Iterator[tuple[int, int]]:
    while True:
        try:
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return
        if ended is None or ended.si_pid in known:
            return
        yield os.waitpid(ended.si_pid, 0)


def readable(files: Iterable[Any], timeout_s: float | None = None) -> list[Any]:
    """Those of ``files`` (descriptors, or objects with a ``fileno``) that can be read or are at their end. Waits up to
    ``timeout_s`` for one, in whole milliseconds (None: no limit).
    """
    poll = select.poll()  # four times as fast as the standard library's selectors, in every step of a worker
    by_number = {file if isinstance(file, int) else file.fileno(): file for file in files}
    for number in by_number:
        poll.register(number, select.POLLIN)
    found = poll.poll(None if timeout_s is None else math.ceil(1e3 * max(0.0, timeout_s)))
    return [by_number[number] for number, _ in found]
