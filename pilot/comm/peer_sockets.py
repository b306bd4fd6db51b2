"""This process's TCP connections to its peers. MPI reads them only when it is asked to make progress, so a rank process
that waits for its peers sleeps until one of them has sent something.
"""

from __future__ import annotations

import os
import socket
import time
from contextlib import suppress
from pathlib import Path

LOOK_EVERY_S = 1.0
"""MPI connects when it first sends to a peer, and opens no file that names the connection."""
_SELECT_BELOW = 1024
"""``select`` accepts only lower descriptors."""
_OPEN = Path("/proc/self/fd")


class PeerSockets:
    """The connections that MPI has opened; none if it uses something else than TCP."""

    def __init__(self) -> None:
        self._found: list[int] = []
        self._looked_s = float("-inf")

    def readable_when_sent_to(self) -> list[int]:
        """Their descriptors, as of at most a second ago: one of them may have been closed since."""
        now_s = time.monotonic()
        if now_s - self._looked_s >= LOOK_EVERY_S:
            self._found, self._looked_s = _connections(), now_s
        return self._found

    def look_again(self) -> None:
        """One of them is closed."""
        self._looked_s = float("-inf")


def _connections() -> list[int]:
    with suppress(OSError):
        return [int(one.name) for one in _OPEN.iterdir() if int(one.name) < _SELECT_BELOW and _is_connection(one)]
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
