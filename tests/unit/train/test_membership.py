"""The state machine of generations."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilot.train.node.membership import Membership, MembershipState, Seat, agreed


def member(generation: int, rank: int = 0, size: int = 2) -> Membership:
    return Membership(generation, rank, size)


@pytest.fixture
def training() -> MembershipState:
    """A worker that trains in generation 3."""
    regroup = MembershipState()
    regroup.join_requested(member(3))
    regroup.rank_connected(3)
    regroup.start(3)
    return regroup


def test_a_worker_starts_when_it_was_told_and_its_rank_process_is_there() -> None:
    regroup = MembershipState()
    regroup.join_requested(member(1))
    assert regroup.startable() is None
    assert regroup.rank_connected(1)
    assert regroup.startable() == member(1)
    regroup.start(1)
    assert regroup.current == member(1)
    assert regroup.ready_for == 0


def test_the_rank_process_may_come_before_the_word(training: MembershipState) -> None:
    assert training.rank_connected(4)
    assert training.ready_for == 0
    training.join_requested(member(4))
    assert training.ready_for == 4


def test_a_newer_generation_supersedes_one_that_forms(training: MembershipState) -> None:
    training.join_requested(member(4))
    training.rank_connected(4)
    training.join_requested(member(5))
    assert training.ready_for == 0
    training.join_requested(member(4))
    assert training.joining == member(5)
    assert not training.rank_connected(4)


def test_what_is_of_older_generations_is_not_wanted(training: MembershipState) -> None:
    assert not training.rank_connected(3)
    assert not training.rank_connected(2)
    training.join_requested(member(2))
    training.leave_requested(3)
    training.pause_requested(2)
    assert (training.joining, training.parting, training.pause_asked) == (None, None, False)


def test_who_parts_is_ready_at_once_and_a_later_word_to_join_takes_it_back(training: MembershipState) -> None:
    training.leave_requested(4)
    assert training.ready_for == 4
    training.join_requested(member(5))
    assert training.ready_for == 0


def test_when_the_generation_that_forms_is_killed_the_present_one_goes_on(training: MembershipState) -> None:
    training.join_requested(member(4))
    training.rank_connected(4)
    training.killed(4)
    assert training.current == member(3)
    assert training.ready_for == 0
    training.leave_requested(5)
    training.killed(5)
    assert training.ready_for == 0


def test_when_the_present_generation_is_killed_the_next_one_starts_without_a_switch(training: MembershipState) -> None:
    training.join_requested(member(4))
    training.killed(3)
    assert training.current is None
    assert training.startable() is None
    training.rank_connected(4)
    assert training.startable() == member(4)


def test_a_worker_that_parted_and_whose_group_died_waits(training: MembershipState) -> None:
    training.leave_requested(4)
    training.rank_lost(3)
    assert training.current is None
    assert training.ready_for == 0


@given(st.lists(st.integers(0, 2**20), min_size=1, max_size=50))
def test_ranks_agree_only_when_all_name_the_same_generation(ready: list[int]) -> None:
    total, squares = float(sum(ready)), float(sum(g * g for g in ready))
    expected = ready[0] if len(set(ready)) == 1 else 0
    assert agreed(total, squares, len(ready)) == expected


@given(
    st.lists(st.tuples(st.sampled_from(["join", "part", "pause", "kill", "came", "lost", "start"]), st.integers(1, 6)))
)
def test_generations_only_rise_and_ready_means_startable(facts: list[tuple[str, int]]) -> None:
    regroup, newest = MembershipState(), 0
    for kind, generation in facts:
        match kind:
            case "join":
                regroup.join_requested(member(generation))
            case "part":
                regroup.leave_requested(generation)
            case "pause":
                regroup.pause_requested(generation)
            case "kill":
                regroup.killed(generation)
            case "came":
                regroup.rank_connected(generation)
            case "lost":
                regroup.rank_lost(generation)
            case "start":
                startable = regroup.startable()
                if startable is not None:
                    assert startable.generation > newest
                    newest = regroup.start(startable.generation).generation
        assert regroup.current is None or regroup.current.generation == newest
        assert regroup.ready_for == 0 or regroup.ready_for > newest


def test_the_ranks_of_a_node_follow_each_other() -> None:
    seats = [Seat.of({"PILOT_LOCAL_RANK": str(local), "PILOT_LOCAL_SIZE": "2"}) for local in range(2)]
    members = [seat.member(7, node, 3) for node in range(3) for seat in seats]
    assert members == [Membership(7, rank, 6) for rank in range(6)]
    assert Seat.of({}).member(7, 1, 3) == Membership(7, 1, 3)
