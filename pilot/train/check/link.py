"""The connection between a checked process and its course's world: calls, one after the other."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

import msgspec

from pilot.comm.channel import Gone
from pilot.train.check.world import Killed, Start, World

_CALLS = ("arrive", "together", "wants", "keep", "keep_next", "finish")
_GONE, _KILLED, _ANSWER, _ENDED = "gone", "killed", "answer", "ended"


class ProcessLink:
    """A process's end; the methods are those of :class:`~pilot.train.check.group.Link`."""

    def __init__(self, descriptor: int) -> None:
        self._connection = Connection(descriptor)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return partial(self._call, name)

    def _call(self, name: str, *given: Any) -> Any:
        try:
            self._connection.send_bytes(msgspec.msgpack.encode((name, given)))
            kind, answer = msgspec.msgpack.decode(self._connection.recv_bytes())
        except (EOFError, OSError):  # the check has ended
            kind, answer = _KILLED, None
        if kind == _KILLED:  # as a node's end does, without a word to the script
            os.kill(os.getpid(), signal.SIGKILL)
        if kind == _GONE:
            raise Gone
        return msgspec.convert(answer, Start) if name == "arrive" else answer


def say_ended(descriptor: int) -> None:
    """The script has ended well."""
    Connection(descriptor).send_bytes(msgspec.msgpack.encode((_ENDED, ())))


def serve(world: World, connection: Connection) -> bool:
    """Answer a process until it ends; returns whether its script, or the world, meant it to."""
    rank = world.member()
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
                answer = _ANSWER, getattr(world, name)(rank, *given)
            except Gone:
                answer = _GONE, None
            except Killed:
                answer = _KILLED, None
            try:
                connection.send_bytes(msgspec.msgpack.encode(answer))
            except OSError:
                return rank.killed
