"""Ended children of this process. Standard library only: scripts' interpreters import it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator


def reap(own: Iterable[int] = ()) -> list[tuple[int, int]]:
    """Reap ended children other than ``own``; (pid, wait status) of each.

    The kernel names them in any order. Those ended by a signal come first, because a process that is killed makes its
    neighbours fail.
    """
    return sorted(_reaped(set(own)), key=lambda end: not os.WIFSIGNALED(end[1]))


def _reaped(known: set[int]) -> Iterator[tuple[int, int]]:
    while True:
        try:
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return
        if ended is None or ended.si_pid in known:
            return
        yield os.waitpid(ended.si_pid, 0)
