"""Who has waited for too long has its turn: at least its minimum, for as long as it waited."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pilot import planners
from pilot.core.config import CoordinatorConfig
from pilot.core.coordinator import Coordinator
from pilot.core.curves.curve import Curve
from pilot.core.curves.measured import Measured
from pilot.core.errors import UserError
from pilot.core.events import DrainRequested, PoolReopened, TrainerHeld, TrainerReleased, TurnDue
from pilot.core.ids import NodeId, TrainerId
from pilot.core.plan.aging import Aging, admit
from pilot.core.trainer.spec import TrainerSpec
from pilot.core.trainer.trainer import Trainer
from pilot.planners import dp
from pilot.research.sim.accounting import Account
from pilot.research.sim.driver import SimConfig, Simulation
from pilot.research.traces.changes import still_pool
from pilot.research.traces.workload import WorkloadRow
from tests.property.world import World

A, B, C = map(TrainerId, "abc")
HOUR = 3600.0


def trainers(*least: int, first: str = "a") -> dict[TrainerId, Trainer]:
    specs = [TrainerSpec(TrainerId(chr(ord(first) + i)), n, 64) for i, n in enumerate(least)]
    return {spec.trainer: Trainer(spec, Measured(spec)) for spec in specs}


def waiting(known: dict[TrainerId, Trainer], *since_s: float) -> Aging:
    aging = Aging()
    for at_s, trainer in zip(since_s, known.values(), strict=True):
        aging.note(at_s, trainer, HOUR)
    return aging


def test_turns_come_in_the_order_of_waiting_and_take_a_part_of_the_pool() -> None:
    known = trainers(1, 1, 1)
    aging = waiting(known, 0.0, 10.0, 20.0)
    assert aging.turns(HOUR - 1, HOUR, known, 8) == []
    assert aging.turns(HOUR + 15, HOUR, known, 8) == [A, B]
    assert aging.turns(HOUR + 20, HOUR, known, 8) == [A, B], "a quarter of 8 nodes"
    assert aging.turns(HOUR + 20, HOUR, known, 12) == [A, B, C]
    assert aging.turns(HOUR + 20, HOUR, known, 12, most=8) == [A, B], "and of the trainers that may run at once"
    assert aging.turns(HOUR + 20, HOUR, known, 1, most=1) == [A], "but one may always begin"


def test_a_large_trainer_is_not_passed_over_for_small_ones_unless_the_pool_is_too_small_for_it() -> None:
    known = trainers(1, 8, 1)
    aging = waiting(known, 0.0, 10.0, 20.0)
    assert aging.turns(2 * HOUR, HOUR, known, 8) == [A], "b is next, when a's turn is over"
    assert aging.turns(2 * HOUR, HOUR, known, 7) == [A]
    known[A].target = [NodeId("x")]
    aging.note(2 * HOUR, known[A], HOUR)
    assert aging.turns(3 * HOUR, HOUR, known, 8) == [B]
    assert aging.turns(3 * HOUR, HOUR, known, 7) == [C]


def test_a_turn_lasts_as_long_as_the_longest_wait_and_a_preemption_does_not_end_it() -> None:
    known = trainers(1, 1)
    aging = waiting(known, 0.0, 0.0)
    assert aging.due_s(HOUR) == HOUR
    known[A].target = [NodeId("x")]
    aging.note(HOUR, known[A], HOUR)
    aging.pass_turns(HOUR, HOUR)
    assert aging.due_s(HOUR) == 2 * HOUR
    known[A].target = []
    aging.note(1.5 * HOUR, known[A], HOUR)
    assert aging.turns(1.5 * HOUR, HOUR, known, 1) == [A]
    assert aging.turns(2 * HOUR, HOUR, known, 1) == [B]
    assert aging.pass_turns(2 * HOUR, HOUR)
    assert aging.due_s(HOUR) == 2.5 * HOUR, "a has waited since its preemption"


def test_of_many_that_begin_at_once_the_first_turns_count() -> None:
    known = trainers(*[1] * 8)
    aging = waiting(known, *[0.0] * 8)
    for trainer in known.values():
        trainer.target = [NodeId("x")]
        aging.note(HOUR, trainer, HOUR)
    assert aging.turns(HOUR, HOUR, known, 8) == [A, B], "a pool that was empty for long is not planned by turns alone"
    assert aging.turns(HOUR, HOUR, known, 16) == [A, B, C, TrainerId("d")]
    assert aging.turns(HOUR, HOUR, known, 1) == [A]


def test_whoever_did_not_wait_long_has_no_turn() -> None:
    known = trainers(1)
    aging = waiting(known, 0.0)
    known[A].target = [NodeId("x")]
    aging.note(HOUR / 2, known[A], HOUR)
    assert (aging.since_s, aging.until_s, aging.due_s(HOUR)) == ({}, {}, math.inf)


@pytest.mark.parametrize("how", ["held", "shelved"])
def test_whoever_rests_does_not_wait(how: str) -> None:
    known = trainers(1)
    aging = waiting(known, 0.0)
    setattr(known[A], how, "for some reason")
    aging.note(10.0, known[A], HOUR)
    assert aging.since_s == {}


def test_those_whose_turn_it_is_replace_the_last_ones_admitted() -> None:
    known = trainers(1, 1, 1, 1)
    first = list(known.values())[:2]
    assert admit(first, [A], known, 2) is first
    assert [t.id for t in admit(first, [C], known, 2)] == [A, C]
    assert [t.id for t in admit(first, [B, C], known, 2)] == [B, C]
    assert [t.id for t in admit(first, [C], known, math.inf)] == [A, B, C]


# --- in the core ------------------------------------------------------------------------------------------------------


def pool(nodes: int, most: int = 10, longest_s: float = HOUR) -> World:
    world = World(CoordinatorConfig(max_parallel_trainers=most, longest_wait_s=longest_s, grace_s=0.0))
    world.join(nodes)
    return world


def test_an_overdue_trainer_gets_a_node_of_one_that_is_worth_more() -> None:
    world = pool(1)
    world.submit(A, 1, 4, Curve.proportional(10.0), fixed_curve=True)
    world.submit(B, 1, 4, Curve.proportional(10.0), fixed_curve=True)
    world.settle(dp.plan)
    assert [len(t.target) for t in world.core.trainers.values()] == [1, 0]
    world.pass_time(HOUR)
    world.settle(dp.plan)
    assert [len(t.target) for t in world.core.trainers.values()] == [0, 1]
    problem = world.core.problem
    assert problem is not None and [c.must_run for c in problem.candidates] == [False, True]


def test_it_gets_the_place_of_the_last_trainer_that_may_run_and_its_nodes() -> None:
    world = pool(2, most=2)
    for name in (A, B, C):
        world.submit(name, 1, 1)
    world.settle(dp.plan)
    assert [t.id for t in world.core.admitted()] == [A, B]
    world.pass_time(HOUR)
    world.settle(dp.plan)
    assert [t.id for t in world.core.admitted()] == [A, C]
    assert [len(t.target) for t in world.core.trainers.values()] == [1, 0, 1]


def test_a_pin_gives_way_to_a_turn() -> None:
    world = pool(2)
    world.submit(A, 1, 4)
    world.submit(B, 1, 4)
    world.core.aging.until_s[B] = 9e9
    trainers = list(world.core.trainers.values())
    problem = world.core._pose(trainers, {A: 2}, {})
    assert problem is not None and [(c.pin, c.must_run) for c in problem.candidates] == [(None, False), (None, True)]
    problem = world.core._pose(trainers, {B: 2}, {})
    assert problem is not None and [(c.pin, c.must_run) for c in problem.candidates] == [(None, False), (2, True)]


def test_turns_begin_with_decisions() -> None:
    world = World(CoordinatorConfig(longest_wait_s=HOUR, decide_every_s=1.5 * HOUR, grace_s=0.0))
    world.join(1)
    world.submit(A, 1, 1)
    world.submit(B, 1, 1)
    world.settle(dp.plan)
    world.pass_time(HOUR)
    world.settle(dp.plan)
    assert [len(t.target) for t in world.core.trainers.values()] == [1, 0]
    world.pass_time(HOUR / 2)
    world.settle(planners.make("dp"))
    assert [len(t.target) for t in world.core.trainers.values()] == [0, 1]


def test_the_time_in_which_a_trainer_is_held_or_the_pool_is_down_does_not_count() -> None:
    world = pool(1)
    world.submit(A, 1, 1)
    world.submit(B, 1, 1)
    world.settle(dp.plan)
    world.send(TrainerHeld(B))
    world.now_s += HOUR
    world.send(TrainerReleased(B))
    assert world.core.aging.since_s == {B: world.now_s}
    world.send(DrainRequested())
    world.settle(dp.plan)
    world.now_s += HOUR
    world.send(PoolReopened())
    assert set(world.core.aging.since_s.values()) == {world.now_s}


def test_the_timer_is_due_once() -> None:
    core = Coordinator(CoordinatorConfig(longest_wait_s=HOUR))
    assert core.handle(9 * HOUR, TurnDue()) == []
    world = pool(0)
    world.submit(A)
    since_s = world.now_s
    assert world.core.due_s() == since_s + HOUR
    world.core.handle(since_s + HOUR, TurnDue())
    assert world.core.due_s() == math.inf


def test_a_longest_wait_is_positive() -> None:
    with pytest.raises(UserError, match="longest_wait_s"):
        CoordinatorConfig(longest_wait_s=0.0)


def test_without_a_longest_wait_nobody_is_overdue() -> None:
    world = pool(1, longest_s=math.inf)
    world.submit(A, 1, 1)
    world.submit(B, 1, 1)
    world.settle(dp.plan)
    world.pass_time(1e9)
    world.settle(dp.plan)
    assert [len(t.target) for t in world.core.trainers.values()] == [1, 0]


# --- in replays -------------------------------------------------------------------------------------------------------


def replayed(rows: list[WorkloadRow], nodes: int, planner: str, longest_s: float) -> dict[TrainerId, Account]:
    core = Coordinator(CoordinatorConfig(longest_wait_s=longest_s, max_parallel_trainers=3))
    simulation = Simulation(core, planners.make(planner), [still_pool(nodes)], rows, SimConfig(math.inf))
    simulation.run(lambda: False, lambda _: None)
    return simulation.accounts


def row(number: int, least: int, hours: float, rate: float = 1.0) -> WorkloadRow:
    curve = Curve.proportional(rate)
    spec = TrainerSpec(TrainerId(f"t{number}"), least, max(4, least), curve, fixed_curve=True)
    return WorkloadRow(replace(spec, rescale_up_s=1.0, rescale_down_s=1.0), 0.0, hours * HOUR * rate * least, 0)


@pytest.mark.parametrize("planner", ["dp", "equal-share", "flotilla", "greedy"])
def test_on_one_node_trainers_take_turns(planner: str) -> None:
    accounts = replayed([row(number, 1, 3.0) for number in range(5)], 1, planner, HOUR)
    starts = {name: [at_s / HOUR for at_s, nodes in a.changes if nodes] for name, a in accounts.items()}
    assert {name: at[:2] for name, at in starts.items()} == {f"t{n}": [float(n), n + 5.0] for n in range(5)}


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 5), st.floats(0.2, 9.0), st.floats(0.1, 9.0)), min_size=2, max_size=7),
    st.integers(1, 5),
    st.sampled_from(("dp", "equal-share", "flotilla")),
)
def test_nobody_that_fits_waits_longer_than_the_turns_before_it_take(
    drawn: list[tuple[int, float, float]], nodes: int, planner: str
) -> None:
    rows = [row(number, least, hours, rate) for number, (least, hours, rate) in enumerate(drawn)]
    fitting = [one for one in rows if one.spec.min_nodes <= nodes]
    if not fitting:
        return
    accounts = replayed(fitting, nodes, planner, HOUR)
    bound_s = (len(fitting) + 1) * HOUR
    for account in accounts.values():
        assert account.ended_s is not None
        at = [(0.0, 0), *account.changes, (account.ended_s, 0)]
        gaps = [until_s - since_s for (since_s, held), (until_s, _) in pairwise(at) if not held]
        assert max(gaps, default=0.0) <= bound_s


def test_a_node_that_is_lost_and_comes_back_changes_no_turn() -> None:
    world = pool(2)
    world.submit(A, 2, 2, Curve.proportional(10.0), fixed_curve=True)
    world.submit(B, 2, 2, Curve.proportional(10.0), fixed_curve=True)
    world.settle(dp.plan)
    world.pass_time(HOUR)
    world.settle(dp.plan)
    lost = world.core.trainers[B].target[0]
    world.lose([lost])
    world.settle(dp.plan)
    world.join(1)
    world.settle(dp.plan)
    assert [len(t.target) for t in world.core.trainers.values()] == [0, 2]
