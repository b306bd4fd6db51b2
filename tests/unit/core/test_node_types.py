"""Nodes of several types: what problems say of them, who can use them, and what is learned from rates."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from pilot.core.commands import MarkNodeSlow
from pilot.core.config import CoordinatorConfig
from pilot.core.curves.curve import Curve
from pilot.core.events import (
    CurvesDue,
    ExitCause,
    PlanReady,
    PoolChanged,
    Progress,
    SpeedsMeasured,
    TrainerResumed,
    WorkerExited,
)
from pilot.core.ids import Generation, NodeId, TrainerId
from pilot.core.plan.objective import throughput
from pilot.core.plan.problem import Plan, PlanStatus, Problem
from pilot.core.pool.node_type import NodeType
from pilot.planners import make
from tests.property.world import World

A100, A40 = NodeType("a100", memory_gb=80.0), NodeType("a40", memory_gb=48.0)
A, B = TrainerId("a"), TrainerId("b")
PLANNER = make("dp")
HALF = (("a100", 1.0), ("a40", 0.5))


def mixed(*types: NodeType, config: CoordinatorConfig | None = None) -> World:
    """A pool with a node of each of these types, called a100-0, a40-1, and so on."""
    world = World(config or CoordinatorConfig(typed=True, grace_s=0.0))
    nodes = [NodeId(f"{of.name}-{i}") for i, of in enumerate(types)]
    world.nodes += nodes
    world.send(PoolChanged(joined=tuple(nodes), types=tuple(zip(nodes, types, strict=True))))
    return world


def problem_of(world: World) -> Problem:
    assert world.core.problem is not None
    return world.core.problem


def give(world: World, *given: tuple[str, tuple[int, ...]]) -> None:
    """Carry out this plan."""
    counts = tuple((TrainerId(name), sum(nodes)) for name, nodes in given)
    by_type = tuple((TrainerId(name), nodes) for name, nodes in given)
    world.pending.clear()
    world.send(PlanReady(world.core.plan_id, Plan(PlanStatus.OPTIMAL, counts, 0.0, by_type=by_type)))
    world.settle(PLANNER)


def measure(world: World, name: TrainerId, minutes: float = 0.5, equal: bool = False, **per_s: float) -> None:
    """Its nodes compute at these rates, by the beginning of their names."""
    group = world.core.trainers[name].group
    assert group is not None
    rates = tuple((n, next(rate for of, rate in per_s.items() if n.startswith(of))) for n in group.members)
    for _ in range(round(2 * minutes)):
        world.now_s += 29.0
        world.send(SpeedsMeasured(name, group.generation, rates, equal))


def test_a_problem_has_types_if_there_are_several_and_planners_can_tell_them_apart() -> None:
    world = mixed(A100, A40, A40)
    world.submit(A, 1, 8, Curve.proportional(), speeds=HALF)
    problem = problem_of(world)
    assert (problem.types, problem.types_nodes, problem.nodes) == (("a100", "a40"), (1, 2), 3)
    assert [(c.held, c.speeds) for c in problem.candidates] == [((0, 0), (1.0, 0.5))]
    give(world, (A, (1, 1)))
    assert sorted(world.core.trainers[A].target) == ["a100-0", "a40-1"]
    world.send(PoolChanged(joined=(NodeId("a40-9"),), types=((NodeId("a40-9"), A40),)))
    assert [c.held for c in problem_of(world).candidates] == [(1, 1)]
    for other in (mixed(A40, A40), mixed(A100, A40, config=CoordinatorConfig())):
        other.submit(A)
        assert (problem_of(other).types, problem_of(other).candidates[0].speeds) == ((), ())


def test_nodes_change_hands_by_type() -> None:
    world = mixed(A100, A100, A40, A40)
    world.submit(A, 1, 8, Curve.proportional(), speeds=HALF)
    world.submit(B, 1, 8, Curve.proportional(), speeds=HALF)
    give(world, (A, (2, 0)), (B, (0, 2)))
    world.nodes.append(NodeId("a40-9"))
    world.send(PoolChanged(joined=(NodeId("a40-9"),), types=((NodeId("a40-9"), A40),)))
    give(world, (A, (1, 2)), (B, (1, 1)))
    assert sorted(world.core.trainers[A].target) == ["a100-1", "a40-2", "a40-9"], "in the order of nodes, per type"
    assert sorted(world.core.trainers[B].target) == ["a100-0", "a40-3"]


@pytest.mark.parametrize(
    ("options", "speeds", "why"),
    [
        ({"types": ("a40",)}, (0.0, 0.5), "it may only use a40"),
        ({"memory_gb": 60.0}, (1.0, 0.0), "a40 has 48 GB of memory, and it needs 60"),
        (
            {"memory_gb": 96.0},
            None,
            "a100 has 80 GB of memory, and it needs 96; a40 has 48 GB of memory, and it needs 96",
        ),
        ({"types": ("h100",)}, None, "it may only use h100"),
    ],
)
def test_types_that_a_trainer_cannot_use(options: dict[str, object], speeds: object, why: str) -> None:
    world = mixed(A100, A40)
    world.submit(A, 1, 8, Curve.proportional(), speeds=HALF, **options)
    trainer = world.core.trainers[A]
    if speeds is None:
        assert world.core.problem is None
        assert world.core.unfit(trainer) == why
        assert world.core.stranded() == [trainer]
        assert world.core.idle() is None
        assert world.core.wanted_nodes() == 8
        assert world.core.prognoses(0.0)[A].starts_in_s is None
        return
    assert problem_of(world).candidates[0].speeds == speeds
    assert why in [trainer.unfit(world.core.pool, name) for name in ("a100", "a40")]
    world.settle(PLANNER)
    assert world.core.stranded() == []
    assert len(trainer.target) == 1


def test_equal_shares_are_for_one_type_unless_none_has_enough_nodes() -> None:
    world = mixed(A100, A100, A40, A40)
    for name, least in ((A, 3), (B, 1)):
        world.submit(name, least, 4, Curve.proportional())
    give(world, (A, (2, 1)), (B, (0, 1)))
    for _ in range(2):
        measure(world, A, equal=True, a100=100.0, a40=50.0)
        measure(world, B, equal=True, a40=50.0)
        assert [candidate.one_type for candidate in problem_of(world).candidates] == [False, True]
    world.settle(PLANNER)
    assert [len(world.core.trainers[name].target) for name in (A, B)] == [3, 1]


def test_a_trainer_that_fits_nothing_does_not_keep_others_from_running() -> None:
    world = mixed(A40, A40, config=CoordinatorConfig(typed=True, grace_s=0.0, max_parallel_trainers=1))
    world.submit(A, 1, 8, types=("h100",))
    world.submit(B, 1, 8)
    world.settle()
    assert [len(t.target) for t in world.core.trainers.values()] == [0, 2]
    new = NodeId("h100-5")
    world.nodes.append(new)
    world.send(PoolChanged(joined=(new,), types=((new, NodeType("h100")),)))
    world.settle(PLANNER)
    assert world.core.stranded() == []


def test_a_trainer_that_fits_nothing_has_no_turns() -> None:
    config = CoordinatorConfig(typed=True, grace_s=0.0, max_parallel_trainers=2, longest_wait_s=600.0)
    world = mixed(A40, A40, A40, config=config)
    world.submit(A, 1, 8, types=("h100",))
    world.submit(B, 1, 2)
    world.submit("c", 1, 1)
    world.settle()
    for _ in range(5):
        world.pass_time(600.0)
        world.settle()
        assert [len(t.target) for t in world.core.trainers.values()] == [0, 2, 1]


def test_speeds_are_measured_and_expected_of_others() -> None:
    world = mixed(A100, A100, A40, A40)
    for name in (A, B):
        world.submit(name, 1, 8, Curve.proportional())
    give(world, (A, (1, 1)), (B, (1, 0)))
    measure(world, A, 5, a100=100.0, a40=25.0)
    world.join(1)
    speeds = {c.trainer: c.speeds for c in problem_of(world).candidates}
    assert world.core.trainers[A].speeds.reference == "a100"
    kinds = problem_of(world).types
    assert speeds[A][kinds.index("a40")] == pytest.approx(0.25)
    assert 0.25 < speeds[B][kinds.index("a40")] < 0.8, "as for a, but shrunk: one trainer says little"
    assert world.core.speeds(world.core.trainers[A])["a40"].measured


def test_a_speed_that_was_not_expected_asks_for_another_plan() -> None:
    world = mixed(A100, A40)
    world.submit(A, 1, 8, Curve.proportional())
    give(world, (A, (1, 1)))
    world.now_s += 600.0
    before = world.core.plan_id
    measure(world, A, 0.5, a100=100.0, a40=25.0)
    assert world.core.plan_id > before or world.core.outdated
    world.send(CurvesDue())
    assert problem_of(world).candidates[0].speeds == pytest.approx((1.0, 0.25))


def test_rates_of_a_mixed_group_become_those_of_the_reference_type() -> None:
    world = mixed(A100, A40)
    world.submit(A, 1, 8, speeds=HALF)
    give(world, (A, (1, 1)))
    group = world.core.trainers[A].group
    assert group is not None
    for step in range(1, 40):
        world.send(Progress(A, group.generation, step, 0, 32 * step, 150.0))
    assert world.core.trainers[A].measured.rates == {2: pytest.approx(200.0)}
    world.core.trainers[A].speeds.equal_shares = True  # then both wait for the slower one
    world.send(Progress(A, group.generation, 41, 0, 32 * 41, 100.0))
    assert world.core.trainers[A].measured.rates == {2: pytest.approx(200.0)}


def test_without_types_rates_stay_as_they_are_measured() -> None:
    world = mixed(A100, A40, config=CoordinatorConfig(grace_s=0.0))
    world.submit(A, 1, 8, speeds=HALF)
    world.settle()
    world.step(A, 150.0)
    world.step(A, 150.0)
    assert world.core.trainers[A].measured.rates == {2: pytest.approx(150.0)}


def test_curves_reach_as_far_as_the_fastest_nodes_take_them() -> None:
    world = mixed(A100, A40)
    world.submit(A, 1, 8, speeds=(("a100", 3.0), ("a40", 1.0)))
    assert max(problem_of(world).candidates[0].value.nodes) == 32


def test_trainers_with_equal_shares_stay_on_one_type() -> None:
    world = mixed(A100, A40, A40)
    world.submit(A, 1, 8, Curve.proportional(), speeds=HALF)
    give(world, (A, (1, 0)))
    world.now_s += 600.0
    measure(world, A, 0.5, equal=True, a100=100.0)
    assert problem_of(world).candidates[0].one_type


def test_an_objective_in_nodes_is_in_units_of_the_pools_mean_node() -> None:
    """Their references differ, but on the same nodes they are worth the same."""
    values = []
    for speeds in (HALF, (("a100", 2.0), ("a40", 1.0))):
        world = mixed(A100, A40)
        world.submit(A, 1, 8, Curve.proportional(), speeds=speeds)
        values.append([problem_of(world).candidates[0].value_on(nodes) for nodes in ((1, 0), (0, 1), (1, 1))])
    assert values[0] == pytest.approx(values[1])
    assert values[0][2] == pytest.approx(2.0)
    world = mixed(A100, A40, config=CoordinatorConfig(typed=True, objective=throughput))
    world.submit(A, 1, 8, Curve.proportional(7.0), fixed_curve=True, speeds=HALF)
    assert problem_of(world).candidates[0].value_on((1, 1)) == pytest.approx(10.5)


def test_a_slow_node_is_planned_for_as_a_type_of_its_own() -> None:
    world = mixed(A40, A40, A40)
    world.submit(A, 1, 8, Curve.proportional())
    world.settle()
    rates = {"a40-0": 100.0, "a40-1": 100.0, "a40-2": 40.0}
    group = world.core.trainers[A].group
    assert group is not None
    for _ in range(5):
        world.now_s += 29.0
        world.send(SpeedsMeasured(A, group.generation, tuple((NodeId(n), rate) for n, rate in rates.items())))
    (marked,) = world.given(MarkNodeSlow)
    assert marked.reason == "a40-2 counts as slow: it does 40% of what a40 nodes do for a"
    problem = problem_of(world)
    assert (problem.types, problem.types_nodes) == (("a40", "a40/slow"), (2, 1))
    assert problem.candidates[0].speeds == pytest.approx((1.0, 0.4))


@pytest.mark.parametrize("cause", [ExitCause.DIED, ExitCause.RAISED])
def test_a_type_on_which_it_ran_out_of_memory_is_excluded_until_it_is_resumed(cause: ExitCause) -> None:
    world = mixed(A100, A40, A40)
    world.submit(A, 1, 8, Curve.proportional(), speeds=HALF)
    give(world, (A, (1, 2)))

    def runs_out(node: str) -> None:
        died = world.worker_dies(A, NodeId(node), cause)
        assert isinstance(died, WorkerExited)
        world.send(replace(died, out_of_memory=True, detail="CUDA out of memory"))
        world.settle(PLANNER)

    trainer = world.core.trainers[A]
    runs_out("a40-1")
    assert trainer.excluded == {"a40": "it ran out of memory on a40: CUDA out of memory"}
    assert trainer.target == list(trainer.members) == ["a100-0"], "the others train on"
    runs_out("a100-0")
    assert trainer.target == []
    assert world.core.unfit(trainer).count("it ran out of memory on") == 2
    assert trainer.open
    world.send(TrainerResumed(A))
    world.settle(PLANNER)
    assert (trainer.excluded, len(trainer.target)) == ({}, 3)


def test_with_one_type_a_trainer_that_runs_out_of_memory_fails_as_before() -> None:
    world = mixed(A40, A40)
    world.submit(A, 1, 8)
    world.settle()
    died = world.worker_dies(A, NodeId("a40-0"), ExitCause.RAISED)
    assert isinstance(died, WorkerExited)
    world.send(replace(died, out_of_memory=True))
    assert not world.core.trainers[A].open


def test_no_trainer_starts_before_its_plan_while_there_are_several_types() -> None:
    config = CoordinatorConfig(typed=True, grace_s=0.0, arrivals_s=5.0)
    world = mixed(A40, A100, config=config)
    world.submit(A, 1, 8, speeds=HALF)
    assert world.core.trainers[A].target == []
    alike = mixed(A40, A40, config=config)
    alike.submit(A, 1, 8, speeds=HALF)
    assert len(alike.core.trainers[A].target) == 1


def test_nodes_of_types_with_another_charge_factor_count_in_proportion() -> None:
    world = mixed(A100, replace(A40, charge_factor=0.25), config=CoordinatorConfig(typed=True, charge_factor=1.0))
    used_s = world.core.usage.until(world.now_s)
    assert world.core.usage.until(world.now_s + 100.0) - used_s == pytest.approx(125.0)
    world.submit(A, 1, 1, types=("a40",))
    world.settle(PLANNER)
    assert world.core.trainers[A].usage.nodes == 0.25


def test_pins_fit_together_by_type() -> None:
    world = mixed(A100, A40, A40)
    for name in (A, B):
        world.submit(name, 1, 8, Curve.proportional(), types=("a40",))
    trainers = list(world.core.trainers.values())

    def pins(**asked: int) -> list[int | None]:
        named = {TrainerId(name): count for name, count in asked.items()}
        problem = world.core._pose(trainers, named, {})
        assert problem is not None
        return [c.pin for c in problem.candidates]

    assert pins(a=1, b=1) == [1, 1]
    assert pins(a=2, b=1) == [2, None], "there are three nodes, but only two that they can use"


def test_rates_of_others_and_of_earlier_groups_are_ignored() -> None:
    world = mixed(A100, A40)
    world.submit(A, 1, 1)
    give(world, (A, (1, 0)))
    speeds, generation = world.core.trainers[A].speeds, world.core.trainers[A].generation
    here, elsewhere = NodeId("a100-0"), NodeId("a40-1")
    world.send(SpeedsMeasured(A, Generation(generation + 1), ((here, 5.0),)))
    world.send(SpeedsMeasured(TrainerId("nobody"), generation, ((here, 5.0),)))
    assert speeds.counts == {}
    for rate in (0.0, math.inf, math.nan):
        world.send(SpeedsMeasured(A, generation, ((here, rate), (elsewhere, 5.0))))
    assert (speeds.counts, speeds.reference) == ({}, None)
    world.send(SpeedsMeasured(A, generation, ((here, 0.5), (elsewhere, 5.0))))
    assert speeds.counts == {"a100": 1}


def test_the_reference_is_known_with_the_first_rate() -> None:
    world = mixed(A100, A40, A40)
    world.submit(A, 1, 8)
    give(world, (A, (1, 2)))
    assert world.core.trainers[A].speeds.reference is None
    world.step(A)
    assert world.core.trainers[A].speeds.reference == "a40"


@pytest.mark.parametrize(("measured", "moves"), [(50.0, False), (51.5, False), (75.0, True), (33.0, True)])
def test_only_a_measured_speed_that_differs_by_more_than_its_error_asks_for_a_plan(
    measured: float, moves: bool
) -> None:
    world = mixed(A100, A40)
    world.submit(A, 1, 8, Curve.proportional(), fixed_curve=True)
    give(world, (A, (1, 1)))
    measure(world, A, 5, a100=100.0, a40=50.0)
    world.send(CurvesDue())
    world.settle(PLANNER)
    give(world, (A, (1, 1)))
    before = world.core.plan_id
    measure(world, A, 20, a100=100.0, a40=measured)
    world.send(CurvesDue())
    assert (world.core.plan_id > before) is moves


def test_types_whose_nodes_are_all_leaving_are_in_no_problem() -> None:
    world = mixed(A100, A40, A40)
    world.submit(A, 1, 8, Curve.proportional(), speeds=HALF)
    world.settle(PLANNER)
    world.send(PoolChanged(noticed=(NodeId("a100-0"),)))
    assert (problem_of(world).types, problem_of(world).nodes) == ((), 2)


def test_the_mean_node_counts_each_type_as_often_as_it_is_there() -> None:
    world = mixed(A100, A40, A40, A40)
    world.submit(A, 1, 8, Curve.proportional(), speeds=HALF)
    assert problem_of(world).candidates[0].value_on((1, 3)) == pytest.approx(4.0)
    world.submit(B, 1, 8, Curve.proportional(), speeds=HALF, objective_curve=Curve.proportional(3.0))
    assert problem_of(world).candidates[1].value_on((1, 3)) == pytest.approx(7.5), "as the user says"
