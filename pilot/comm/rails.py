"""Several rank processes per node, called *rails*: one TCP stream cannot use all of a fast network, and a node may have
several interfaces.

Rail r of each node shares a communicator with rail r of the other nodes. Only rail 0 talks to the training processes
(:mod:`pilot.comm.rank_server`). It passes their arenas on to the other rails of its node, and signals when a part is
full or a state is to be broadcast; each rail transfers its pieces and reports when they are complete. All nodes assign
the same pieces to rails in the same order. The control vector belongs to rail 0.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from pilot.comm import note_checks
from pilot.comm.channel import Channel, PeerGone, ready
from pilot.comm.fabric import Fabric
from pilot.comm.messages import Attach, Broadcast, Quit, Select
from pilot.comm.naps import LONGEST_NAP_S, Naps, wait_for
from pilot.comm.pipeline import Pipeline, SharedPart, pieces, put_pieces, shared_parts
from pilot.core.errors import ProtocolError

QUIT_LIMIT_S = 5.0
"""After this time a rank process exits without the others: they were killed before they could quit."""


class Rails:
    """Rail 0's channels to the other rails of its node."""

    def __init__(self, channels: Sequence[Channel] = ()) -> None:
        self.channels = tuple(channels)
        self.count = 1 + len(channels)
        self._rung = [0] * len(channels)

    def attach(self, notes: Sequence[Attach], fds: Sequence[int | None]) -> None:
        """Pass on the arenas of all training processes of the node."""
        for channel in self.channels:
            for note, fd in zip(notes, fds, strict=True):
                channel.send(note, fd)

    def send(self, note: Select | Quit) -> None:
        """Pass on the choice of an arena, or that the generation ends normally."""
        for channel in self.channels:
            channel.send(note)

    def begin_step(self) -> None:
        """Reset: no part of the step is complete."""
        self._rung = [0] * len(self.channels)

    def start_next(self) -> None:
        """The step's next part may be summed."""
        for channel in self.channels:
            channel.ring()

    def over(self, own: int) -> int:
        """Return the number of parts that are complete on all rails, if ``own`` are on this one."""
        return min([own, *self._rung])

    def receive(self, channel: Channel) -> None:
        """Receive the signal of another rail that its next part, or its broadcast, is complete."""
        note, _ = channel.receive()
        if note is not None:
            raise ProtocolError(f"a rail must not send {type(note).__name__}")
        self._rung[self.channels.index(channel)] += 1

    def broadcast(self, nodes: Sequence[int], size: int, fd: int) -> None:
        """Have the other rails broadcast their pieces of a state from the first of ``nodes`` to the others; ``fd`` is
        its memory.
        """
        self.begin_step()
        for channel in self.channels:
            channel.send(Broadcast(list(nodes), size), fd)

    def is_broadcast(self) -> bool:
        """Whether the pieces of the other rails have arrived."""
        for channel in ready(self.channels, 0) if self.channels else ():
            self.receive(channel)
        return all(self._rung)


class RailServer:
    """The loop of a rail other than rail 0.

    Parameters
    ----------
    channel : to rail 0 of the node
    fabric : to the same rail of the other nodes
    local : number of training processes on the node
    """

    def __init__(self, channel: Channel, fabric: Fabric, local: int, rail: int, rails: int) -> None:
        self._channel, self._fabric, self._local = channel, fabric, local
        self._rail, self._rails = rail, rails
        self._arenas: dict[int, list[SharedPart]] = {}
        self._selected = 0

    def run(self) -> None:
        """Serve until ``Quit``; raises :class:`~pilot.comm.channel.PeerGone` if rail 0 ends without sending it."""
        while self._serve_one():
            pass
        leave_together(self._fabric)

    def _serve_one(self) -> bool:
        note, fd = self._channel.receive()
        match note:
            case None:
                self._sum(self._arenas[self._selected])
            case Attach():
                self._attach(note, fd)
            case Select(number):
                self._selected = number
            case Broadcast() if fd is not None:
                self._broadcast(note, fd)
            case Quit():
                return False
            case _:
                raise ProtocolError(f"rail 0 must not send {type(note).__name__}")
        return True

    def _attach(self, note: Attach, fd: int | None) -> None:
        fds = [fd, *(self._channel.receive()[1] for _ in range(1, self._local))]
        self._arenas[note.number] = shared_parts([note_checks.views(note, one) for one in fds], note.parts)

    def _sum(self, parts: Sequence[SharedPart]) -> None:
        """Sum one step, whose first part is full already."""
        sums, reported, started = Pipeline(), 0, 0
        naps, rung = Naps(self._fabric.sockets), True
        while reported < len(parts):
            if rung:
                put_pieces(sums, self._fabric, parts, started, self._rail, self._rails)
                started += 1
            sums.done()
            for _ in range(reported, sums.over):
                self._channel.ring()
                naps.part_over()
            reported = sums.over
            rung = reported < len(parts) and self._rung(naps, under_way=reported < started)

    def _rung(self, naps: Naps, *, under_way: bool) -> bool:
        """Whether rail 0 rang during a nap."""
        if not naps.nap([self._channel], under_way=under_way):
            return False
        note, _ = self._channel.receive()
        if note is not None:
            raise ProtocolError(f"{type(note).__name__} in the middle of a step")
        return True

    def _broadcast(self, note: Broadcast, fd: int) -> None:
        arena = note_checks.source(fd, note.size)
        arena.close_fd()
        state = Pipeline()
        broadcast_pieces(state, self._fabric.among(note.nodes), arena.memory, note.size, self._rail, self._rails)
        wait_for(state.done, [self._channel])
        self._channel.ring()


def broadcast_pieces(state: Pipeline, among: Fabric, memory: object, size: int, rail: int, rails: int) -> None:
    """Begin to broadcast ``rail``'s pieces of a state of ``size`` bytes, which rank 0 of ``among`` has in
    ``memory``."""
    block: NDArray[np.uint8] = np.frombuffer(memory, np.uint8, size)  # type: ignore[call-overload]  # any buffer
    state.put(partial(among.broadcast, piece, 0) for piece in pieces(block)[rail::rails])


def leave_together(fabric: Fabric) -> None:
    """Wait for the other nodes, which quit after the same step; our workers may have ended already."""
    barrier = fabric.barrier()
    end_s = time.monotonic() + QUIT_LIMIT_S
    while not barrier.done():
        if time.monotonic() > end_s:
            raise PeerGone
        time.sleep(LONGEST_NAP_S)
