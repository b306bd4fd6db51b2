"""The loop of a rank process, with a twin in place of MPI."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence

import numpy as np
import pytest

from pilot.comm import rank_server, step_sum
from pilot.comm.arena import Arena, ArenaLayout, lay_out, shares_of
from pilot.comm.channel import Channel, PeerGone, ready
from pilot.comm.messages import (
    AnyNote,
    Attach,
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
from pilot.comm.pipeline import PIECE_BYTES
from pilot.comm.rails import Rails, RailServer
from pilot.comm.rank_server import RankServer
from pilot.core.errors import ProtocolError
from pilot.train.state.block import LONGEST_ROW
from tests.unit.comm.twin import TwinFabric, World

send_next = TwinFabric.send_next


class Node:
    """A node's rank processes as threads, and the training processes' ends of the channels."""

    def __init__(self, rails: Sequence[TwinFabric], count: int) -> None:
        pairs, links = ([Channel.pair() for _ in range(size)] for size in (count, len(rails) - 1))
        self.error: Exception | None = None
        ends = [theirs for _, theirs in pairs]
        others = [
            RailServer(theirs, fabric, count, rail, len(rails))
            for rail, (fabric, (_, theirs)) in enumerate(zip(rails[1:], links, strict=True), 1)
        ]
        first = RankServer(ends, rails[0], 7, Rails([ours for ours, _ in links]))
        self.ranks = [Rank(ours, self) for ours, _ in pairs]
        self.threads = [threading.Thread(target=self._run, args=(first, [*ends, *(ours for ours, _ in links)]))]
        self.threads += [
            threading.Thread(target=self._run, args=(server, [theirs]))
            for server, (_, theirs) in zip(others, links, strict=True)
        ]
        for thread in self.threads:
            thread.start()

    def _run(self, server: RankServer | RailServer, ends: Sequence[Channel]) -> None:
        try:
            server.run()
        except Exception as error:
            if isinstance(server, RankServer):
                self.error = error
        for end in ends:
            end.close()


class Rank:
    """A training process."""

    def __init__(self, channel: Channel, node: Node) -> None:
        self.channel = channel
        self._node = node

    @property
    def error(self) -> Exception | None:
        return self._node.error

    def note(self) -> AnyNote | None:
        return self.packet()[0]

    def packet(self) -> tuple[AnyNote | None, int | None]:
        assert ready([self.channel], 10), "the rank process says nothing"
        return self.channel.receive()

    def belongs_with(self, other: Rank) -> bool:
        """Whether both are on one node."""
        return self._node is other._node

    def ended(self) -> bool:
        for thread in self._node.threads:
            thread.join(10)
        return not any(thread.is_alive() for thread in self._node.threads)


@pytest.fixture(params=[(1, 1), (2, 1), (3, 1), (1, 2), (3, 2), (2, 3)], ids="{0[0]} per node, {0[1]} rails".format)
def ranks(request: pytest.FixtureRequest) -> Iterator[list[Rank]]:
    """Six ranks, this many per node."""
    count, rails = request.param
    nodes = zip(*(World(6 // count).ranks() for _ in range(rails)), strict=True)
    made = [rank for node in nodes for rank in Node(node, count).ranks]
    assert [rank.note() for rank in made] == [Here(7, r, 6) for r in range(6)]
    yield made
    for rank in made:
        rank.channel.close()
    assert all(rank.ended() for rank in made)


def quit_all(ranks: list[Rank]) -> None:
    for rank in ranks:
        rank.channel.send(Quit())
    assert all(rank.ended() for rank in ranks)
    assert [rank.error for rank in ranks] == [None] * len(ranks)


def test_each_step_sums_all_parts_whatever_the_order_in_which_ranks_come(ranks: list[Rank]) -> None:
    large = (2 * PIECE_BYTES // 4 + 7, "float32")  # more than one piece
    layout = lay_out([(5, "float32"), (7, "float32"), large, (3, "float64")], bucket_bytes=16, control_count=2)
    arenas = [Arena.of_size(layout.size) for _ in ranks]
    parts = [[np.frombuffer(a.memory, p.dtype, p.count, p.offset) for p in layout.parts] for a in arenas]
    for rank, arena in zip(ranks, arenas, strict=True):
        give(rank, Attach(list(layout.parts)), arena)
    for step in range(3):
        for number, rank in enumerate(ranks):
            *buckets, last, control = parts[number]
            for part in buckets:
                part[:] = number + step
                rank.channel.ring()
            last[:] = control[:] = number + step
            rank.channel.ring()
        assert [rank.note() for rank in ranks] == [None] * 6
        assert all((part == 15 + 6 * step).all() for own in parts for part in own)
    quit_all(ranks)


def test_what_each_process_has_for_itself_is_summed_with_its_like_on_the_other_nodes(ranks: list[Rank]) -> None:
    layout = shares_of(lay_out([(9, "float32"), (40, "float32")], bucket_bytes=16, control_count=2), 1)
    arenas = [Arena.of_size(layout.size) for _ in ranks]
    for number, (rank, arena) in enumerate(zip(ranks, arenas, strict=True)):
        give(rank, Attach(list(layout.parts)), arena)
        for part in layout.parts:
            np.frombuffer(arena.memory, part.dtype, part.count, part.offset)[:] = 10**number
        for _ in layout.parts[:-1]:
            rank.channel.ring()
    assert [rank.note() for rank in ranks] == [None] * 6
    local = sum(rank.belongs_with(ranks[0]) for rank in ranks)
    for number, arena in enumerate(arenas):
        *buckets, control = (np.frombuffer(arena.memory, p.dtype, p.count, p.offset) for p in layout.parts)
        assert all((bucket == sum(10**like for like in range(number % local, 6, local))).all() for bucket in buckets)
        assert (control == 111111).all()
    quit_all(ranks)


def test_rows_of_all_ranks_are_gathered(ranks: list[Rank]) -> None:
    for number, rank in enumerate(ranks):
        rank.channel.send(Gather([number, -1]))
    assert [rank.note() for rank in ranks] == [Gathered([[number, -1] for number in range(6)])] * 6
    quit_all(ranks)


def test_rows_that_do_not_fit_in_a_packet_come_in_several(ranks: list[Rank]) -> None:
    longest = [2**63 - 1] * LONGEST_ROW
    for number, rank in enumerate(ranks):
        rank.channel.send(Gather([number, *longest[1:]]))
    for rank in ranks:
        rows: list[list[int]] = []
        while len(rows) < 6:
            note = rank.note()
            assert isinstance(note, Gathered)
            rows += note.rows
        assert rows == [[number, *longest[1:]] for number in range(6)]
    quit_all(ranks)


def test_a_block_reaches_only_those_that_lack_it(ranks: list[Rank]) -> None:
    content = np.random.default_rng(0).integers(0, 256, 2 * PIECE_BYTES + 5, np.uint8)
    source = Arena.of_size(len(content))
    np.frombuffer(source.memory, np.uint8, len(content))[:] = content
    takers = [0, 3]  # on another node, or on the root's; on the last one nobody takes anything
    for number, rank in enumerate(ranks):
        if number != 2:
            rank.channel.send(Spread(2, takers))
    ranks[2].channel.send(Spread(2, takers, len(content)), source.fd)
    for number, rank in enumerate(ranks):
        note, fd = rank.packet()
        assert note == SpreadDone()
        assert (fd is not None) == (number in takers)
        if fd is not None:
            taken = np.frombuffer(Arena(fd).memory, np.uint8, len(content))
            np.testing.assert_array_equal(taken, content)
    quit_all(ranks)


def test_those_who_wait_for_a_block_hear_that_it_moves(ranks: list[Rank], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_server, "MOVING_EVERY_S", 0.0)
    source = Arena.of_size(3 * PIECE_BYTES)
    for number, rank in enumerate(ranks):
        mine = number == 2
        rank.channel.send(Spread(2, [0], source.size if mine else 0), source.fd if mine else None)
    for rank in ranks:
        notes = [rank.packet()[0]]
        while notes[-1] != SpreadDone():
            notes.append(rank.packet()[0])
        assert (Moving() in notes) == any(rank.belongs_with(ranks[end]) for end in (0, 2)), "only nodes that take part"
    quit_all(ranks)


def test_all_of_a_node_lose_their_rank_process_when_one_goes_in_the_middle_of_a_step(ranks: list[Rank]) -> None:
    layout = attach(ranks)
    for _ in layout.parts[1:]:
        ranks[0].channel.ring()
    ranks[0].channel.hang_up()
    for rank in ranks:
        for _ in layout.parts[1:] if rank is not ranks[0] and rank.belongs_with(ranks[0]) else ():
            rank.channel.ring()
    assert ranks[0].ended()
    assert isinstance(ranks[0].error, PeerGone)
    for rank in ranks:
        if rank.belongs_with(ranks[0]):
            assert hears_no_more(rank)


def test_a_process_that_goes_while_its_neighbours_compute_is_missed_at_once() -> None:
    node = Node(World(1).ranks(), 3)
    attach(node.ranks)
    for rank in node.ranks:
        rank.note()
    node.ranks[1].channel.hang_up()
    assert node.ranks[1].ended()
    assert isinstance(node.error, PeerGone)
    assert hears_no_more(node.ranks[0])


def test_a_process_that_rings_out_of_turn_is_refused(ranks: list[Rank]) -> None:
    layout = attach(ranks)
    ranks[0].channel.ring()
    for rank in ranks:
        for _ in layout.parts[1:] if rank.belongs_with(ranks[0]) else ():
            rank.channel.ring()
    assert ranks[0].ended()
    assert isinstance(ranks[0].error, ProtocolError)


def test_another_note_in_the_middle_of_a_step_is_refused() -> None:
    node = Node(World(1).ranks(), 2)
    attach(node.ranks)
    for rank in node.ranks:
        rank.note()
        rank.channel.ring()
    node.ranks[1].channel.send(Quit())
    assert node.ranks[0].ended()
    assert isinstance(node.error, ProtocolError)
    assert str(node.error) == "Quit in the middle of a step"


def test_processes_of_a_node_that_ask_for_different_things_are_refused() -> None:
    node = Node(World(1).ranks(), 2)
    attach(node.ranks)
    node.ranks[0].channel.ring()
    node.ranks[1].channel.send(Quit())
    assert node.ranks[0].ended()
    assert isinstance(node.error, ProtocolError)


def test_ranks_that_sum_while_others_gather_are_notified(ranks: list[Rank], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_sum, "LONG_S", 0.1)
    layout = attach(ranks)
    for rank in ranks:
        for _ in layout.parts[1:]:
            rank.channel.ring()
    assert [rank.note() for rank in ranks] == [None] * 6, "one round is over"
    gathering = [rank for rank in ranks if rank.belongs_with(ranks[-1])]
    summing = [rank for rank in ranks if rank not in gathering]
    for rank in gathering:
        rank.channel.send(Gather([0]))
    for rank in summing:
        for _ in layout.parts[1:]:
            rank.channel.ring()
    after = [rank for rank in summing if rank.belongs_with(ranks[0])]
    assert [rank.note() for rank in after] == [OutOfStep(6 - len(gathering))] * len(gathering)
    assert not ready([rank.channel for rank in ranks if rank not in after], 0), "it is theirs to say so"


def test_ranks_that_select_while_others_gather_are_notified(ranks: list[Rank], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_sum, "LONG_S", 0.1)
    attach(ranks)
    gathering = [rank for rank in ranks if rank.belongs_with(ranks[0])]
    for rank in ranks:
        rank.channel.send(Gather([0, 1, 2]) if rank in gathering else Select(0))
    assert ranks[len(gathering)].note() == OutOfStep(0)


def test_a_gather_for_which_some_come_late_is_no_sign_later(ranks: list[Rank], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_sum, "LONG_S", 0.01)
    layout = attach(ranks)
    told = threading.Event()
    monkeypatch.setattr(TwinFabric, "send_next", lambda fabric, number: (send_next(fabric, number), told.set()))
    last = [rank for rank in ranks if rank.belongs_with(ranks[-1])]
    for slow in (last, ranks[: len(last)]):
        for rank in ranks:
            if rank not in slow:
                rank.channel.send(Gather([1]))
        assert told.wait(10)
        for rank in slow:
            rank.channel.send(Gather([1]))
        assert [rank.note() for rank in ranks] == [Gathered([[1]] * 6)] * 6
        for rank in (*(rank for rank in ranks if rank not in slow), *slow):
            assert not ready([ranks[0].channel, ranks[-1].channel], 0.05), "a sum waits for long, too"
            for _ in layout.parts[1:]:
                rank.channel.ring()
        assert [rank.note() for rank in ranks] == [None] * 6
    quit_all(ranks)


def test_processes_of_a_node_that_sum_while_others_gather_are_notified() -> None:
    node = Node(World(1).ranks(), 3)
    attach(node.ranks)
    for rank in node.ranks:
        rank.note()
    node.ranks[0].channel.ring()
    node.ranks[1].channel.send(Gather([0]))
    node.ranks[2].channel.send(Select(0))
    assert [node.ranks[rank].note() for rank in (0, 2)] == [OutOfStep(1)] * 2
    assert not ready([node.ranks[1].channel], 0)
    node.ranks[0].channel.ring()
    node.ranks[2].channel.hang_up()
    assert node.ranks[0].ended()
    assert isinstance(node.error, PeerGone)


@pytest.mark.parametrize("first", [0, 3, 5])
def test_the_first_node_that_gathers_ends_the_round_of_all(ranks: list[Rank], first: int) -> None:
    for number in (0, 1, 7):
        for rank in ranks:
            rank.channel.send(Open(number))
        gathering = [rank for rank in ranks if rank.belongs_with(ranks[first])]
        for rank in gathering:
            rank.channel.send(Gather([number]))
        others = [rank for rank in ranks if rank not in gathering]
        assert [rank.note() for rank in others] == [Closing(number)] * len(others)
        assert not ready([rank.channel for rank in ranks], 0.05), "once is enough"
        for rank in others:
            rank.channel.send(Gather([number]))
        assert [rank.note() for rank in ranks] == [Gathered([[number]] * 6)] * 6
    quit_all(ranks)


def test_a_round_that_another_node_has_ended_ends_for_who_opens_it_later(ranks: list[Rank]) -> None:
    first, late = ([rank for rank in ranks if rank.belongs_with(ranks[end])] for end in (0, -1))
    others = [rank for rank in ranks if rank not in (*first, *late)]
    for rank in (*first, *others):
        rank.channel.send(Open(3))
    for rank in first:
        rank.channel.send(Gather([1]))
    assert [rank.note() for rank in others] == [Closing(3)] * len(others)
    for rank in late:
        rank.channel.send(Open(3))
    assert [rank.note() for rank in late] == [Closing(3)] * len(late)
    for rank in (*others, *late):
        rank.channel.send(Gather([1]))
    assert [rank.note() for rank in ranks] == [Gathered([[1]] * 6)] * 6
    quit_all(ranks)


def test_a_node_that_waits_long_for_those_in_a_round_is_not_out_of_step(
    ranks: list[Rank], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(step_sum, "LONG_S", 0.01)
    told = threading.Event()
    monkeypatch.setattr(TwinFabric, "send_next", lambda fabric, number: (send_next(fabric, number), told.set()))
    layout = attach(ranks)
    for rank in ranks:
        rank.channel.send(Open(0))
    waiting = [rank for rank in ranks if rank.belongs_with(ranks[0])]
    others = [rank for rank in ranks if rank not in waiting]
    for rank in waiting:
        rank.channel.send(Gather([1]))
    assert told.wait(10)
    for rank in others:
        assert rank.note() == Closing(0)
    for rank in others:
        rank.channel.send(Gather([1]))
    assert [rank.note() for rank in ranks] == [Gathered([[1]] * 6)] * 6
    for rank in (*waiting, *others):
        assert not ready([ranks[0].channel, ranks[-1].channel], 0.05), "a sum waits for long, too"
        for _ in layout.parts[1:]:
            rank.channel.ring()
    assert [rank.note() for rank in ranks] == [None] * 6
    quit_all(ranks)


def test_a_process_that_goes_in_an_open_round_takes_its_rank_process_along(ranks: list[Rank]) -> None:
    for rank in ranks:
        rank.channel.send(Open(0))
    ranks[-1].channel.hang_up()
    assert ranks[-1].ended()
    assert isinstance(ranks[-1].error, PeerGone)


def test_processes_of_a_node_that_open_different_rounds_are_refused() -> None:
    node = Node(World(1).ranks(), 2)
    for number, rank in enumerate(node.ranks):
        rank.note()
        rank.channel.send(Open(number))
    assert node.ranks[0].ended()
    assert isinstance(node.error, ProtocolError)


def attach(ranks: list[Rank]) -> ArenaLayout:
    layout = lay_out([(5, "float32"), (7, "float32")], bucket_bytes=16, control_count=2)
    for rank in ranks:
        give(rank, Attach(list(layout.parts)), Arena.of_size(layout.size))
    return layout


def give(rank: Rank, note: Attach, arena: Arena) -> None:
    rank.channel.send(note, arena.fd)
    arena.close_fd()


def hears_no_more(rank: Rank) -> bool:
    try:
        rank.packet()
    except PeerGone:
        return True
    return False
