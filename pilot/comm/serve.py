"""The loop of a rank process: does what its worker asks until it is told to quit."""

from __future__ import annotations

import os
import time
from typing import assert_never

import numpy as np
from numpy.typing import NDArray

from pilot.comm.arena import Arena
from pilot.comm.channel import Channel, Gone
from pilot.comm.fabric import FIRST_NAP_S, GROWTH, LONGEST_NAP_S, Fabric, Pending, wait_for
from pilot.comm.messages import Attach, Gather, Gathered, Here, Quit, Spread, Spreaded
from pilot.core.errors import ProtocolError

CHUNK_BYTES = 4 * 1024 * 1024
IN_FLIGHT = 4
"""A broadcast goes in chunks, several under way at once, so that a tree of ranks works as a pipeline."""


QUIT_LIMIT_S = 5.0
"""After that a rank ends without the others: they were killed before they could quit."""


class Server:
    """Serves one worker in one generation.

    Parameters
    ----------
    channel : to the worker
    fabric : to the other ranks
    generation : said to the worker first
    """

    def __init__(self, channel: Channel, fabric: Fabric, generation: int) -> None:
        self._channel = channel
        self._fabric = fabric
        self._generation = generation
        self._parts: list[NDArray[np.generic]] = []

    def run(self) -> None:
        """Serve until ``Quit``; raises :class:`~pilot.comm.channel.Gone` when the worker goes without it."""
        self._channel.send(Here(self._generation, self._fabric.rank, self._fabric.size))
        while self._serve_one():
            pass
        self._leave_together()

    def _leave_together(self) -> None:
        """Wait for the other ranks, which were told to quit after the same step; the worker may be gone already."""
        barrier = self._fabric.barrier()
        end_s = time.monotonic() + QUIT_LIMIT_S
        while not barrier.done():
            if time.monotonic() > end_s:
                raise Gone
            time.sleep(LONGEST_NAP_S)

    def _serve_one(self) -> bool:
        note, fd = self._channel.receive()
        match note:
            case None:
                self._sum_step()
            case Attach():
                self._attach(note, fd)
            case Gather():
                self._gather(note)
            case Spread():
                self._spread(note, fd)
            case Quit():
                return False
            case Here() | Gathered() | Spreaded():
                raise ProtocolError(f"a worker does not say {type(note).__name__}")
            case _:
                assert_never(note)
        return True

    def _attach(self, note: Attach, fd: int | None) -> None:
        if fd is None:
            raise ProtocolError("Attach came without a descriptor")
        arena = Arena(fd)
        arena.close_fd()
        self._parts = [np.frombuffer(arena.memory, p.dtype, p.count, p.offset) for p in note.parts]

    def _sum_step(self) -> None:
        """Start a sum at each doorbell (the first has rung), drive all on, and ring when all are over."""
        under_way: list[Pending] = [self._fabric.sum(self._parts[0])]
        started, nap_s = 1, FIRST_NAP_S
        while under_way or started < len(self._parts):
            if started < len(self._parts) and (not under_way or self._channel.readable()):
                self._hear_doorbell()
                under_way.append(self._fabric.sum(self._parts[started]))
                started, nap_s = started + 1, FIRST_NAP_S
                continue
            if under_way[0].done():
                del under_way[0]
                nap_s = FIRST_NAP_S
                continue
            self._nap(nap_s, rings=started < len(self._parts))
            nap_s = min(nap_s * GROWTH, LONGEST_NAP_S)
        self._channel.ring()

    def _hear_doorbell(self) -> None:
        note, _ = self._channel.receive()
        if note is not None:
            raise ProtocolError(f"{type(note).__name__} in the middle of a step")

    def _nap(self, seconds: float, *, rings: bool) -> None:
        self._channel.nap(seconds)
        if not rings and self._channel.readable():
            self._hear_doorbell()  # raises: the worker has gone, or speaks out of turn
            raise ProtocolError("one doorbell more than the step has parts")

    def _gather(self, note: Gather) -> None:
        row = np.array(note.row, np.int64)
        rows = np.empty((self._fabric.size, len(row)), np.int64)
        wait_for(self._fabric.gather(row, rows).done, self._channel)
        self._channel.send(Gathered(rows.tolist()))

    def _spread(self, note: Spread, fd: int | None) -> None:
        fabric = self._fabric.among([note.root, *note.takers])
        size = np.array([note.size], np.int64)
        wait_for(fabric.broadcast(size.view(np.uint8), 0).done, self._channel)
        arena = Arena(fd) if fd is not None else Arena.of_size(int(size[0]))
        block = np.frombuffer(arena.memory, np.uint8, int(size[0]))
        self._pipeline(fabric, block)
        self._channel.send(Spreaded(len(block)), None if fd is not None else os.dup(arena.fd))
        arena.close_fd()

    def _pipeline(self, fabric: Fabric, block: NDArray[np.uint8]) -> None:
        under_way: list[Pending] = []
        for start in range(0, len(block), CHUNK_BYTES):
            under_way.append(fabric.broadcast(block[start : start + CHUNK_BYTES], 0))
            if len(under_way) == IN_FLIGHT:
                wait_for(under_way.pop(0).done, self._channel)
        for chunk in under_way:
            wait_for(chunk.done, self._channel)
