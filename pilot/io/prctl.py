"""System calls that Python does not offer. Standard library only, because the fork server imports it."""

from __future__ import annotations

import ctypes
import os
import signal
from contextlib import suppress

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
    """Take from this process, and from all that it will execute, what it may do as root."""
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
