"""Linux calls that Python's library lacks: parent death, namespaces, ended children, readable descriptors, cores.
Standard library only, because scripts' interpreters import it."""

from __future__ import annotations

import ctypes
import math
import os
import re
import select
import signal
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_PR_CAPBSET_DROP = 24
_PR_SET_NO_NEW_PRIVS = 38
_CLONE_NEWNS, _CLONE_NEWIPC, _CLONE_NEWPID, _CLONE_NEWNET = 0x20000, 0x08000000, 0x20000000, 0x40000000
_CAPABILITY_VERSION = 0x20080522
_CAPABILITIES = 64

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


def leave_namespaces() -> None:
    """Give this process mounts, a network and shared memory of its own, and its children pids. It must be root of its
    user namespace.
    """
    _expect_zero("unshare", _libc.unshare(_CLONE_NEWNS | _CLONE_NEWIPC | _CLONE_NEWPID | _CLONE_NEWNET))


def drop_capabilities() -> None:
    """Take root's privileges from this process and its children."""
    for capability in range(_CAPABILITIES):
        with suppress(OSError):  # this kernel has fewer
            _prctl(_PR_CAPBSET_DROP, capability)
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)
    header, none = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION, 0), (ctypes.c_uint32 * 6)()
    _expect_zero("capset", _libc.capset(header, none))


def _prctl(option: int, value: int) -> None:
    _expect_zero(f"prctl({option})", _libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0))


def _expect_zero(call: str, result: int) -> None:
    if result != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"{call}: {os.strerror(error)}")


def reap(own: Iterable[int] = ()) -> list[tuple[int, int]]:
    """Reap ended children other than ``own``; returns the pid and wait status of each.

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
    """Return the ``files`` (descriptors, or objects with a ``fileno``) that can be read or are at their end. Waits up
    to ``timeout_s`` for one, in milliseconds (None: no limit).
    """
    poll = select.poll()  # four times as fast as the standard library's selectors, in every step of a worker
    by_number = {file if isinstance(file, int) else file.fileno(): file for file in files}
    for number in by_number:
        poll.register(number, select.POLLIN)
    found = poll.poll(None if timeout_s is None else math.ceil(1e3 * max(0.0, timeout_s)))
    return [by_number[number] for number, _ in found]


def usable_cores() -> int:
    """Return the number of cores allowed by the CPU affinity and quotas of control groups; at least 1."""
    groups = Path("/proc/self/cgroup").read_text()
    quotas = cgroup_quotas(groups, Path("/sys/fs/cgroup"))
    return max(1, int(min([float(len(os.sched_getaffinity(0))), *quotas])))


def oom_kills(groups: str, root: Path, host: Path) -> int:
    """Return how many processes of these control groups (see :func:`cgroups`) the kernel has killed for lack of memory;
    of the whole host, by ``host``, if it does not count them by group."""
    own = next(cgroups(groups, root, "memory"), root)
    for path in (own / "memory.events", own / "memory.oom_control", host):
        with suppress(OSError):
            found = re.search(r"^oom_kill (\d+)$", path.read_text(), re.MULTILINE)
            if found is not None:
                return int(found[1])
    return 0


def cgroup_quotas(groups: str, root: Path) -> Iterator[float]:
    """Yield the quota, in cores, of a process's control group and of each parent group that has one."""
    for folder in cgroups(groups, root, "cpu"):
        yield from _quota(folder)


def cgroups(groups: str, root: Path, controller: str) -> Iterator[Path]:
    """Yield the folders of a process's control groups that have this ``controller``, and those of their parents.

    ``groups`` is the content of ``/proc/<pid>/cgroup``, ``root`` where the groups are mounted (versions 1 and 2).
    """
    for line in groups.splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers or controller in controllers.split(","):
            group = root / controllers / path.lstrip("/")
            yield from (group, *group.parents)


def _quota(folder: Path) -> Iterator[float]:
    """Yield a group's quota; nothing if it has none, or if we may not read it."""
    try:
        if (folder / "cpu.max").is_file():
            quota, period = (folder / "cpu.max").read_text().split()
        else:
            quota, period = ((folder / f"cpu.cfs_{name}_us").read_text().strip() for name in ("quota", "period"))
    except OSError:
        return
    if quota not in ("max", "-1"):
        yield int(quota) / int(period)
