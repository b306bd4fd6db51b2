"""The connection between a checked process and its course's world: calls, one after the other."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

import msgspec

from pilot.comm.channel import Gone
from pilot.train.check.world import Killed, Member, Start

_CALLS = ("arrive", "together", "wants", "keep")
_ENDED = "ended"


class ProcessLink:
    """A process's end; the methods are those of :class:`~pilot.train.check.world.Member`."""

    def __init__(self, descriptor: int) -> None:
        self._connection = Connection(descriptor)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return partial(self._call, name)

    def ended(self) -> None:
        """The script has ended well."""
        self._connection.send_bytes(msgspec.msgpack.encode((_ENDED, ())))

    def _call(self, name: str, *given: Any) -> Any:
        try:
            self._connection.send_bytes(msgspec.msgpack.encode((name, given)))
            kind, answer = msgspec.msgpack.decode(self._connection.recv_bytes())
        except (EOFError, OSError):  # the check has ended
            kind, answer = Killed.__name__, None
        if kind == Killed.__name__:  # as a node's end does, without a word to the script
            os.kill(os.getpid(), signal.SIGKILL)
        if kind == Gone.__name__:
            raise Gone
        return msgspec.convert(answer, Start) if name == "arrive" else answer


def serve(rank: Member, connection: Connection) -> bool:
    """Answer a process until it ends; returns whether its script, or the world, meant it to."""
    world = rank.world
    with connection:
        while True:
            since_s = time.monotonic()
            try:
                name, given = msgspec.msgpack.decode(connection.recv_bytes())
            except (EOFError, OSError):
                return rank.killed
            world.slowest_s = max(world.slowest_s, time.monotonic() - since_s)
            if name == _ENDED:
                return True
            assert name in _CALLS, name
            try:
                answer = name, getattr(rank, name)(*given)
            except (Gone, Killed) as end:
                answer = type(end).__name__, None
            with suppress(OSError):  # it has ended, as the next call finds
                connection.send_bytes(msgspec.msgpack.encode(answer))
