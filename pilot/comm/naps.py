"""Waits for MPI by sleeping, never by spinning.

MPI makes progress, and reads this process's TCP connections to its peers, only when it is called. So a rank process
that waits for its peers sleeps until one of them has sent something.
"""

from __future__ import annotations

import os
import select
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from pilot.comm.channel import Channel, PeerGone, ready

REFRESH_EVERY_S = 1.0
"""MPI connects when it first sends to a peer, and opens no file that names the connection."""
_SELECT_BELOW = 1024
"""``select`` accepts only lower descriptors."""
_OPEN = Path("/proc/self/fd")


class PeerSockets:
    """The connections that MPI has opened; none if it uses something else than TCP."""

    def __init__(self) -> None:
        self._found: list[int] = []
        self._refreshed_s = float("-inf")

    def readable_when_sent_to(self) -> list[int]:
        """Their descriptors, as of at most a second ago: one of them may have been closed since."""
        now_s = time.monotonic()
        if now_s - self._refreshed_s >= REFRESH_EVERY_S:
            self._found, self._refreshed_s = [fd for fd in connections() if fd < _SELECT_BELOW], now_s
        return self._found

    def refresh(self) -> None:
        """List them again next time, because one is closed."""
        self._refreshed_s = float("-inf")


def connections() -> list[int]:
    """The descriptors of this process's TCP connections."""
    with suppress(OSError):
        return [int(one.name) for one in _OPEN.iterdir() if _is_connection(one)]
    return []


def _is_connection(descriptor: Path) -> bool:
    try:
        if not str(descriptor.readlink()).startswith("socket:"):
            return False
        with socket.socket(fileno=os.dup(int(descriptor.name))) as one:
            one.getpeername()
            return one.family in (socket.AF_INET, socket.AF_INET6) and one.type == socket.SOCK_STREAM
    except OSError:  # it listens, or is closed
        return False


FIRST_NAP_S = 10e-6
LONGEST_NAP_S = 1e-3
GROWTH = 1.2
"""The end of a wait of 1 ms is noticed within 0.2 ms; a wait of 10 ms or more costs at most 1,000 checks per second."""
MOST_WAKES = 1000
"""So many sleeps may end because of arriving data before a part is over: a large one comes in a few hundred pieces."""


class Naps:
    """A rank process's sleeps of one step, or of an open round. While nothing happens they get longer, up to
    ``longest_s``. They end when a peer has sent something, at most :data:`MOST_WAKES` times: data that MPI does not
    read yet would wake us again and again.
    """

    def __init__(self, sockets: PeerSockets, longest_s: float = LONGEST_NAP_S) -> None:
        self._sockets = sockets
        self._longest_s = longest_s
        self._woken = 0
        self._nap_s = 0.0

    def nap(self, channels: Sequence[Channel], *, under_way: bool) -> list[Channel]:
        """The channels that have something to receive, or are closed; unless a sum is ``under_way``, waits until there
        is one.
        """
        rung, sent = self._sleep(channels) if under_way else (ready(channels), False)
        self._woken += sent
        self._nap_s = 0.0 if rung else FIRST_NAP_S if sent else longer(self._nap_s, self._longest_s)
        return rung

    def part_over(self) -> None:
        """Sleep briefly again: a part is summed, and the next one may be soon."""
        self._woken, self._nap_s = 0, FIRST_NAP_S

    def _sleep(self, channels: Sequence[Channel]) -> tuple[list[Channel], bool]:
        """The channels that rang, and whether a peer has sent something."""
        if self._woken < MOST_WAKES:
            return ready_or_sent(channels, self._sockets, self._nap_s)
        return ready(channels, self._nap_s), False


def ready_or_sent(channels: Sequence[Channel], sockets: PeerSockets, timeout_s: float) -> tuple[list[Channel], bool]:
    """The channels that have something to receive, or are closed, and whether a peer has sent something; waits for one
    of them, at most ``timeout_s``.
    """
    waited_for: list[Channel | int] = [*channels, *sockets.readable_when_sent_to()]
    try:
        readable = select.select(waited_for, [], [], timeout_s)[0]
    except OSError:  # MPI has closed one
        sockets.refresh()
        return ready(channels, timeout_s), False
    rung = [one for one in readable if isinstance(one, Channel)]
    return rung, len(readable) > len(rung)


def longer(nap_s: float, longest_s: float = LONGEST_NAP_S) -> float:
    """Return the length of the next sleep after one of ``nap_s`` in which nothing happened."""
    return min(max(nap_s * GROWTH, FIRST_NAP_S), longest_s)


def wait_for(done: Callable[[], bool], channels: Sequence[Channel]) -> None:
    """Sleep until ``done``; :class:`PeerGone` if a training process ends meanwhile (waiting ones send nothing)."""
    nap_s = FIRST_NAP_S
    while not done():
        if ready(channels, nap_s):
            raise PeerGone
        nap_s = longer(nap_s)
