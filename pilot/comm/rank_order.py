"""The order to a waiting rank process: one line, on the socket that it then uses for PMI."""

from __future__ import annotations

import socket

import msgspec

from pilot.core.errors import ProtocolError

WARM = "rank warm"
"""The name of a waiting rank process in ps and top."""

WORKER_GONE = 4
"""Exit status of a rank process whose training process ended without sending it a ``Quit``."""

_LINE_MAX_BYTES = 1 << 16


class RankOrder(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Be ``rail`` (of ``rails``) of node ``rank`` (of ``size``) in ``generation``, for the training processes that
    listen on ``sockets``.
    """

    generation: int
    rank: int
    size: int
    sockets: list[str]
    rail: int = 0
    rails: int = 1

    @property
    def of_world(self) -> tuple[int, int]:
        """The rank in the MPI world, and its size."""
        return self.rank * self.rails + self.rail, self.size * self.rails


def encode(order: RankOrder) -> bytes:
    """One line."""
    return msgspec.json.encode(order) + b"\n"


def receive(end: socket.socket) -> RankOrder | None:
    """Wait for an order; None if there will be none because the other end is closed.

    What follows the line stays in the socket.
    """
    line = bytearray()
    while not line.endswith(b"\n"):
        byte = end.recv(1)
        if not byte:
            return None
        line += byte
        if len(line) > _LINE_MAX_BYTES:
            raise ProtocolError("the order is too long")
    return msgspec.json.decode(line, type=RankOrder)
