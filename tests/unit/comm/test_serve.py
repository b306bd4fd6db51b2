"""The loop of a rank process, with a twin in place of MPI."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import numpy as np
import pytest

from pilot.comm.arena import Arena
from pilot.comm.channel import Channel, Gone
from pilot.comm.layout import lay_out
from pilot.comm.messages import AnyNote, Attach, Gather, Gathered, Here, Quit, Spread, Spreaded
from pilot.comm.serve import CHUNK_BYTES, Server
from pilot.core.errors import ProtocolError
from tests.unit.comm.twin import World


class Rank:
    """A rank process as a thread, and its worker's end of the channel."""

    def __init__(self, server_end: Channel, channel: Channel, server: Server) -> None:
        self.channel = channel
        self.error: Exception | None = None
        self._server, self._end = server, server_end
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        try:
            self._server.run()
        except Exception as error:
            self.error = error
        self._end.close()

    def note(self) -> AnyNote | None:
        assert self.channel.readable(10), "the rank process says nothing"
        return self.channel.receive()[0]

    def ended(self) -> bool:
        self.thread.join(10)
        return not self.thread.is_alive()


@pytest.fixture
def ranks() -> Iterator[list[Rank]]:
    made = []
    for fabric in World(3).ranks():
        ours, theirs = Channel.pair()
        made.append(Rank(theirs, ours, Server(theirs, fabric, generation=7)))
    assert [rank.note() for rank in made] == [Here(7, r, 3) for r in range(3)]
    yield made
    for rank in made:
        rank.channel.close()
        assert rank.ended()


def quit_all(ranks: list[Rank]) -> None:
    for rank in ranks:
        rank.channel.send(Quit())
    assert all(rank.ended() for rank in ranks)
    assert [rank.error for rank in ranks] == [None] * len(ranks)


def test_each_step_sums_all_parts_whatever_the_order_in_which_ranks_come(ranks: list[Rank]) -> None:
    layout = lay_out([(5, "float32"), (7, "float32"), (3, "float64")], bucket_bytes=16, control_count=2)
    arenas = [Arena.of_size(layout.size) for _ in ranks]
    parts = [[np.frombuffer(a.memory, p.dtype, p.count, p.offset) for p in layout.parts] for a in arenas]
    for rank, arena in zip(ranks, arenas, strict=True):
        rank.channel.send(Attach(list(layout.parts)), arena.fd)
    for step in range(3):
        for number, rank in enumerate(ranks):
            for part in parts[number]:
                part[:] = number + step
                rank.channel.ring()
        assert [rank.note() for rank in ranks] == [None] * 3
        assert all((part == 3 + 3 * step).all() for own in parts for part in own)
    quit_all(ranks)


def test_rows_of_all_ranks_are_gathered(ranks: list[Rank]) -> None:
    for number, rank in enumerate(ranks):
        rank.channel.send(Gather([number, -1]))
    assert [rank.note() for rank in ranks] == [Gathered([[0, -1], [1, -1], [2, -1]])] * 3
    quit_all(ranks)


def test_a_block_reaches_only_those_that_lack_it(ranks: list[Rank]) -> None:
    content = np.random.default_rng(0).integers(0, 256, 2 * CHUNK_BYTES + 5, np.uint8)
    source = Arena.of_size(len(content))
    np.frombuffer(source.memory, np.uint8, len(content))[:] = content
    ranks[2].channel.send(Spread(2, [0], len(content)), source.fd)
    ranks[0].channel.send(Spread(2, [0]))
    assert ranks[2].note() == Spreaded(len(content))
    note, fd = ranks[0].channel.receive()
    assert note == Spreaded(len(content))
    assert fd is not None
    taken = np.frombuffer(Arena(fd).memory, np.uint8, len(content))
    np.testing.assert_array_equal(taken, content)
    quit_all(ranks)


def test_a_rank_process_ends_when_its_worker_goes_in_the_middle_of_a_step(ranks: list[Rank]) -> None:
    layout = lay_out([(5, "float32")], bucket_bytes=16, control_count=2)
    arena = Arena.of_size(layout.size)
    ranks[0].channel.send(Attach(list(layout.parts)), arena.fd)
    ranks[0].channel.ring()
    ranks[0].channel.ring()
    ranks[0].channel.hang_up()
    assert ranks[0].ended()
    assert isinstance(ranks[0].error, Gone)


def test_a_worker_that_rings_out_of_turn_is_refused(ranks: list[Rank]) -> None:
    layout = lay_out([(5, "float32")], bucket_bytes=16, control_count=2)
    arena = Arena.of_size(layout.size)
    ranks[0].channel.send(Attach(list(layout.parts)), arena.fd)
    for _ in range(3):
        ranks[0].channel.ring()
    assert ranks[0].ended()
    assert isinstance(ranks[0].error, ProtocolError)
