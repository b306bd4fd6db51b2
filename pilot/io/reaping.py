"""Ended children of this process. Standard library only: scripts' interpreters import it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress


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
