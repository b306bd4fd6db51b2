"""The state machine of generations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilot.train.node.membership import Membership, MembershipState, Seat, agreed


def member(generation: int, rank: int = 0, size: int = 2) -> Membership:
    return Membership(generation, rank, size)


Fact = tuple[str, int]
CALLS: dict[str, Callable[[MembershipState, int], object]] = {
    "join": lambda state, generation: state.join_requested(member(generation)),
    "part": MembershipState.leave_requested,
    "pause": MembershipState.pause_requested,
    "kill": MembershipState.killed,
    "came": MembershipState.rank_connected,
    "lost": MembershipState.rank_lost,
    "start": MembershipState.start,
}
TRAINS: list[Fact] = [("join", 3), ("came", 3), ("start", 3)]
"""A worker trains in generation 3."""


def after(facts: list[Fact]) -> MembershipState:
    state = MembershipState()
    for kind, generation in facts:
        CALLS[kind](state, generation)
    return state


def shown(state: MembershipState) -> dict[str, Any]:
    named = {"current": state.current, "joining": state.joining, "startable": state.startable()}
    generations = {name: one and one.generation for name, one in named.items()}
    return {**generations, "ready": state.ready_for, "parting": state.parting, "pauses": state.pause_asked}


NOTHING = {"current": None, "joining": None, "startable": None, "ready": 0, "parting": None, "pauses": False}


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        # It starts once it has its membership and its rank process.
        ([("join", 1)], {"joining": 1}),
        ([("join", 1), ("came", 1)], {"joining": 1, "startable": 1, "ready": 1}),
        ([("join", 1), ("came", 1), ("start", 1)], {"current": 1}),
        # The rank process may come first.
        ([*TRAINS, ("came", 4)], {"current": 3}),
        ([*TRAINS, ("came", 4), ("join", 4)], {"current": 3, "joining": 4, "ready": 4}),
        # A newer generation supersedes one that forms.
        ([*TRAINS, ("join", 4), ("came", 4), ("join", 5), ("join", 4)], {"current": 3, "joining": 5}),
        # Older generations do not count.
        ([*TRAINS, ("came", 3), ("came", 2), ("join", 2), ("part", 3), ("pause", 2)], {"current": 3}),
        # A worker that parts is ready at once; a later membership takes that back.
        ([*TRAINS, ("part", 4)], {"current": 3, "ready": 4, "parting": 4}),
        ([*TRAINS, ("part", 4), ("join", 5)], {"current": 3, "joining": 5}),
        # If the generation that forms is killed, the present one continues.
        ([*TRAINS, ("join", 4), ("came", 4), ("kill", 4)], {"current": 3}),
        ([*TRAINS, ("part", 5), ("kill", 5)], {"current": 3}),
        # If the present one is killed, the next one starts without a switch.
        ([*TRAINS, ("join", 4), ("kill", 3)], {"joining": 4}),
        ([*TRAINS, ("join", 4), ("kill", 3), ("came", 4)], {"joining": 4, "startable": 4, "ready": 4}),
        # A worker that parted and whose group died waits.
        ([*TRAINS, ("part", 4), ("lost", 3)], {}),
    ],
)
def test_facts_lead_to(facts: list[Fact], expected: dict[str, Any]) -> None:
    assert shown(after(facts)) == NOTHING | expected


def test_a_rank_process_of_another_generation_is_not_wanted() -> None:
    state = after([*TRAINS, ("join", 4), ("came", 4), ("join", 5)])
    assert [state.rank_connected(generation) for generation in (2, 3, 4, 5)] == [False, False, False, True]


@given(st.lists(st.integers(0, 2**20), min_size=1, max_size=50))
def test_ranks_agree_only_when_all_name_the_same_generation(ready: list[int]) -> None:
    total, squares = float(sum(ready)), float(sum(g * g for g in ready))
    expected = ready[0] if len(set(ready)) == 1 else 0
    assert agreed(total, squares, len(ready)) == expected


@given(st.lists(st.tuples(st.sampled_from([*CALLS]), st.integers(1, 6))))
def test_generations_only_rise_and_ready_means_startable(facts: list[Fact]) -> None:
    state, newest = MembershipState(), 0
    for kind, generation in facts:
        if kind != "start":
            CALLS[kind](state, generation)
        elif (startable := state.startable()) is not None:
            assert startable.generation > newest
            newest = state.start(startable.generation).generation
        assert state.current is None or state.current.generation == newest
        assert state.ready_for == 0 or state.ready_for > newest


def test_the_ranks_of_a_node_follow_each_other() -> None:
    seats = [Seat.of({"PILOT_LOCAL_RANK": str(local), "PILOT_LOCAL_SIZE": "2"}) for local in range(2)]
    members = [seat.member(7, node, 3) for node in range(3) for seat in seats]
    assert members == [Membership(7, rank, 6) for rank in range(6)]
    assert Seat.of({}).member(7, 1, 3) == Membership(7, 1, 3)
