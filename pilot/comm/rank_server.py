"""The loop of a rank process: serves its training processes until they quit.

A node's training processes make the same requests in the same order, so one packet is read from each of them at a time.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import TypeVar, assert_never

import numpy as np
from numpy.typing import NDArray

from pilot.comm import note_checks
from pilot.comm.arena import Arena
from pilot.comm.channel import MAX_PACKET_BYTES, WORD_BYTES, Channel
from pilot.comm.fabric import Fabric
from pilot.comm.messages import (
    AnyNote,
    Attach,
    Broadcast,
    Closing,
    Gather,
    Gathered,
    Here,
    Moving,
    Open,
    OutOfStep,
    Quit,
    Select,
    Spread,
    SpreadDone,
)
from pilot.comm.naps import wait_for
from pilot.comm.open_round import OpenRound
from pilot.comm.pipeline import Pipeline, SharedPart, shared_parts
from pilot.comm.rails import Rails, broadcast_pieces, leave_together
from pilot.comm.step_sum import Lockstep, StepSum
from pilot.core.errors import ProtocolError

MOVING_EVERY_S = 1.0
_ROWS_BYTES = MAX_PACKET_BYTES - 1024
"""Space for the rows in a packet, which has a name and two lengths, too."""

_Kind = TypeVar("_Kind")


class RankServer:
    """Serves the training processes of one node in one generation.

    Parameters
    ----------
    channels : to the training processes, by their rank on the node
    fabric : to the rank processes of the other nodes, which have as many training processes
    generation : announced to the training processes first
    rails : the node's other rank processes
    """

    def __init__(
        self, channels: Sequence[Channel], fabric: Fabric, generation: int, rails: Rails | None = None
    ) -> None:
        self._channels = list(channels)
        self._fabric = fabric
        self._generation = generation
        self._rails = rails or Rails()
        self._lockstep = Lockstep(fabric, self._channels)
        self._round = OpenRound(fabric, self._channels)
        self._arenas: dict[int, list[SharedPart]] = {}
        self._selected: int | None = 0

    def run(self) -> None:
        """Serve until ``Quit``; raises :class:`~pilot.comm.channel.PeerGone` if one of them ends without sending it."""
        for rank, channel in self._by_rank():
            channel.send(Here(self._generation, rank, self._fabric.size * len(self._channels)))
        while self._serve_next():
            pass
        self._rails.send(Quit())
        leave_together(self._fabric)

    def _serve_next(self) -> bool:
        notes, fds = self._receive_all()
        if len(set(map(type, notes))) > 1:
            self._expect_in_step(notes)
        match notes[0]:
            case None:
                _alike(type(None), notes)
                StepSum(self._parts(), self._channels, self._fabric, self._rails, self._lockstep).run()
            case Attach():
                self._attach(_alike(Attach, notes), fds)
            case Select():
                note_checks.no_descriptors(fds)
                self._select(_alike(Select, notes))
            case Gather():
                note_checks.no_descriptors(fds)
                self._gather([note.row for note in _alike(Gather, notes)])
            case Spread():
                self._spread(_alike(Spread, notes), fds)
            case Quit():
                _alike(Quit, notes)
                return False
            case Open():
                note_checks.no_descriptors(fds)
                self._round.open(_alike(Open, notes))
            case Here() | Gathered() | Closing() | OutOfStep() | Broadcast() | Moving() | SpreadDone():
                raise ProtocolError(f"a training process must not send {type(notes[0]).__name__}")
            case _:
                assert_never(notes[0])
        return True

    def _receive_all(self) -> tuple[list[AnyNote | None], list[int | None]]:
        """The next packet of each training process: notes and descriptors, by rank."""
        notes: list[AnyNote | None] = [None] * len(self._channels)
        fds: list[int | None] = [None] * len(self._channels)
        silent = self._channels.copy()
        while silent:
            for channel in self._round.ready(silent):
                rank = self._channels.index(channel)
                notes[rank], fds[rank] = channel.receive()
                silent.remove(channel)
        return notes, fds

    def _by_rank(self) -> Iterator[tuple[int, Channel]]:
        return enumerate(self._channels, self._fabric.rank * len(self._channels))

    def _expect_in_step(self, notes: Sequence[AnyNote | None]) -> None:
        """If some processes of the node gather and others sum, notify the latter, and wait until one ends."""
        gathering = [rank for (rank, _), note in zip(self._by_rank(), notes, strict=True) if isinstance(note, Gather)]
        summing = [
            channel for channel, note in zip(self._channels, notes, strict=True) if isinstance(note, Select | None)
        ]
        if gathering and summing:
            for channel in summing:
                channel.send(OutOfStep(gathering[0]))
            while True:
                self._receive_all()

    def _attach(self, notes: Sequence[Attach], fds: Sequence[int | None]) -> None:
        alike = all((note.number, note.parts) == (notes[0].number, notes[0].parts) for note in notes)
        if alike:
            self._rails.attach(notes, fds)
        arenas = [note_checks.views(note, fd) for note, fd in zip(notes, fds, strict=True)]
        self._arenas.pop(notes[0].number, None)
        if alike:  # otherwise the models differ, which is reported before the first sum
            self._arenas[notes[0].number] = shared_parts(arenas, notes[0].parts)

    def _parts(self) -> list[SharedPart]:
        if self._selected not in self._arenas:
            raise ProtocolError("there is nothing to sum, or the node's training processes differ in what to sum")
        return self._arenas[self._selected]

    # --- between steps -----------------------------------------------------------------------------------------------

    def _select(self, notes: Sequence[Select]) -> None:
        """Part of a step, and so a sum: to a row of zeros each node adds the numbers of its processes."""
        selected = np.zeros((self._fabric.size, len(notes)), np.int64)
        selected[self._fabric.rank] = [note.number for note in notes]
        self._lockstep.begins()
        operation = self._fabric.sum(selected)
        wait_for(lambda: self._lockstep.summed(operation), self._channels)
        self._selected = notes[0].number if (selected == notes[0].number).all() else None
        self._rails.send(notes[0])
        self._answer(selected, len(notes))

    def _gather(self, given: Sequence[Sequence[int]]) -> None:
        ours = note_checks.one_row(given)
        self._round.close()
        rows = np.empty((self._fabric.size, len(ours)), np.int64)
        self._lockstep.begins()
        operation = self._fabric.gather(ours, rows)
        wait_for(lambda: self._lockstep.gathered(operation), self._channels)
        self._answer(rows, len(given))

    def _answer(self, rows: NDArray[np.int64], local: int) -> None:
        by_rank = rows.reshape(self._fabric.size * local, -1)
        fit = max(1, _ROWS_BYTES // ((1 + by_rank.shape[1]) * WORD_BYTES))
        for begin in range(0, len(by_rank), fit):
            gathered = Gathered(by_rank[begin : begin + fit].tolist())
            for channel in self._channels:
                channel.send(gathered)

    def _spread(self, notes: Sequence[Spread], fds: Sequence[int | None]) -> None:
        self._lockstep.begins()
        local, root, takers = len(notes), notes[0].root, notes[0].takers
        first = self._fabric.rank * local
        note_checks.check_spread(notes, fds, first, self._fabric.size * local)
        nodes = list(dict.fromkeys(rank // local for rank in (root, *takers)))
        source = next((fd for fd in fds if fd is not None), None)
        arena = self._broadcast(nodes, max(note.size for note in notes), source) if self._fabric.rank in nodes else None
        for rank, channel in self._by_rank():
            channel.send(SpreadDone(), arena.fd if arena is not None and rank in takers else None)
        if arena is not None:
            arena.close_fd()

    def _broadcast(self, nodes: Sequence[int], size: int, source: int | None) -> Arena:
        """Broadcast the ``size`` bytes that the first of ``nodes`` has in its descriptor ``source`` to all of them."""
        fabric = self._fabric.among(nodes)
        sizes = np.array([size], np.int64)
        wait_for(fabric.broadcast(sizes.view(np.uint8), 0).done, self._channels)
        arena = note_checks.source(source, size) if source is not None else Arena.of_size(int(sizes[0]))
        self._rails.broadcast(nodes, int(sizes[0]), arena.fd)
        state = Pipeline()
        broadcast_pieces(state, fabric, arena.memory, int(sizes[0]), 0, self._rails.count)
        wait_for(_Movement(state, self._channels).done, self._channels)
        wait_for(self._rails.is_broadcast, self._channels)
        return arena


class _Movement:
    """Reports to ``channels`` now and then that ``state`` is moving: a large one takes longer than the time-out."""

    def __init__(self, state: Pipeline, channels: Sequence[Channel]) -> None:
        self._state = state
        self._channels = channels
        self._reported, self._reported_s = 0, time.monotonic()

    def done(self) -> bool:
        """Whether all pieces are complete; makes them progress."""
        over, now_s = self._state.done(), time.monotonic()
        if self._state.pieces_over > self._reported and now_s - self._reported_s >= MOVING_EVERY_S:
            self._reported, self._reported_s = self._state.pieces_over, now_s
            for channel in self._channels:
                channel.send(Moving())
        return over


def _alike(kind: type[_Kind], notes: Sequence[object]) -> list[_Kind]:
    """``notes``, after checking that all are of this kind."""
    alike = [note for note in notes if isinstance(note, kind)]
    if len(alike) < len(notes):
        raise ProtocolError(f"the training processes of a node request different things: {notes}")
    return alike
