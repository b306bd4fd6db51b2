"""Which trainers are in a problem, with how many nodes at most, and how many nodes the pool should have."""

from __future__ import annotations

import pytest

from pilot.core.commands import Solve
from pilot.core.config import CoordinatorConfig
from pilot.core.coordinator import Coordinator
from pilot.core.curves.curve import Curve
from pilot.core.events import (
    CurvesDue,
    DecisionDue,
    DrainRequested,
    ExitCause,
    PlanReady,
    PoolChanged,
    TrainerCancelled,
    TrainerSubmitted,
    WorkerExited,
)
from pilot.core.ids import NodeId, TrainerId
from pilot.core.plan.idle import Bound, Idle
from pilot.core.plan.objective import throughput
from pilot.core.plan.problem import Plan, PlanStatus
from pilot.core.planning import CURVE_PLANS, MOST
from pilot.core.pool.evidence import SetAside
from pilot.core.study.events import StudySubmitted
from pilot.core.trainer.spec import Profiling, TrainerSpec
from tests.property.test_studies import study
from tests.property.world import World, generous_plan

A, B, C, D, E, F = map(TrainerId, "abcdef")
X, Y, Z = map(NodeId, "xyz")


def of(*specs: TrainerSpec, config: CoordinatorConfig | None = None) -> Coordinator:
    """A coordinator with three nodes and trainers of ``specs``."""
    core = Coordinator(config)
    core.handle(0.0, PoolChanged(joined=(X, Y, Z)))
    for spec in specs:
        core.handle(0.0, TrainerSubmitted(spec))
    return core


def test_a_problem_includes_the_trainers_that_can_have_their_minimum() -> None:
    core = of(TrainerSpec(A, 2, 8), TrainerSpec(B, 1, 8))

    def posed(reach: dict[TrainerId, int] | None = None) -> tuple[int, dict[TrainerId, int]] | None:
        core._reach = reach
        problem = core._next_problem()
        return problem and (problem.nodes, {c.trainer: c.max_nodes for c in problem.candidates})

    assert posed() == (3, {A: 8, B: 8})
    assert posed({A: 2}) == (3, {A: 2}), "who can reach nothing is not in it"
    assert posed({A: 1, B: 1}) == (3, {B: 1})
    assert posed({A: 1}) is None
    core.trainers[A].evidence.aside = {X: SetAside(9.0, "it failed"), Y: SetAside(9.0, "it failed")}
    assert posed() == (3, {B: 8})
    core.pool.leave(Z, None)
    assert posed() == (2, {B: 8})


def test_a_trial_is_worth_its_weight_and_any_other_trainer_what_the_objective_says() -> None:
    curve = Curve.of([(1, 10.0), (4, 30.0)])
    core = of(*(TrainerSpec(name, curve=curve) for name in (A, B)), config=CoordinatorConfig(objective=throughput))
    problem = core._pose(list(core.trainers.values()), {}, {A: 2.0})
    assert problem is not None
    assert [[c.value_at(nodes) for nodes in (1, 4)] for c in problem.candidates] == [[20.0, 60.0], [10.0, 30.0]]


def test_a_pool_should_have_the_nodes_that_trainers_want_and_one_more_for_each_that_none_can_use() -> None:
    world = World()
    world.submit(A, 1, 4, Curve.proportional(), fixed_curve=True)
    assert world.core.wanted_nodes() == 4
    world.join(3)
    world.settle()
    assert (world.core.wanted_nodes(), len(world.core.useless())) == (4, 0)
    world.join(2)
    world.settle()
    [idle] = world.core.pool.available()
    world.core.pool.aside[idle] = SetAside(9e9, "it failed")
    assert (world.core.wanted_nodes(), len(world.core.useless())) == (5, 1)


def test_nodes_reserved_for_trials_are_among_them() -> None:
    world = World()
    world.join(2)
    world.send(StudySubmitted(study(trials=1)))
    assert world.core.wanted_nodes() == 2, "what its only trial would take"
    world.complete(0, generous_plan)
    assert world.core.wanted_nodes() == 2, "and that is kept for it now"


def test_a_plan_that_comes_while_the_pool_drains_asks_for_no_trial() -> None:
    world = World()
    world.join(2)
    world.send(StudySubmitted(study(trials=2)))
    world.send(DrainRequested())
    while world.pending:
        world.complete(0, generous_plan)
    assert not any(trial.asked for trial in world.core.studies[study().study].trials)


@pytest.mark.parametrize(("cause", "replaced"), [(ExitCause.RAISED, 1), (ExitCause.UNREAD, 0)])
def test_a_node_that_will_be_tried_again_soon_is_not_replaced(cause: ExitCause, replaced: int) -> None:
    core = of(TrainerSpec(A))
    core.handle(0.0, PlanReady(core.plan_id, Plan(PlanStatus.OPTIMAL, ((A, 1),), 0.0)))
    (node,) = core.trainers[A].workers
    core.handle(1.0, WorkerExited(A, node, cause, "its folder: Stale file handle"))
    assert node in core.trainers[A].evidence.aside
    assert len(core.useless()) == replaced


def test_a_curve_that_has_moved_asks_for_a_plan_at_a_bounded_rate_though_nothing_else_happens() -> None:
    world = World(CoordinatorConfig(t_fwd_s=100.0, objective=throughput))
    world.join(2)
    for name in (A, B):
        world.submit(name, 1, 2, profile=Profiling.NEVER)
        world.settle()
    world.now_s += 1.0
    asked_s = world.core.asked_s
    world.step(A, 100.0)
    assert world.core.due_s() == asked_s + 100.0 / CURVE_PLANS and world.core.due(world.now_s) == []
    world.step(B, 5.0)
    [due] = world.core.due(asked_s + 50.0)
    assert due == CurvesDue()
    world.now_s = asked_s + 50.0
    world.send(due)
    assert [solve.reason for solve in world.given(Solve)][-1] == "trainer a scales differently than assumed"
    assert not any(isinstance(event, CurvesDue) for event in world.core.due(world.now_s + 1e6)), "both are learned"
    world.settle()
    world.step(A, 101.0)
    assert world.core.outdated == "", "that is noise"
    world.send(DrainRequested("it is over"))
    world.core.outdated = "trainer a scales differently than assumed"
    assert not any(isinstance(event, CurvesDue) for event in world.core.due(world.now_s + 1e6)), "no plan would follow"


def made(core: Coordinator, counts: dict[TrainerId, int], first_out: TrainerId | None = None) -> None:
    """Answer the last problem."""
    plan = Plan(PlanStatus.OPTIMAL, tuple(counts.items()), 0.0, first_out=first_out)
    core.handle(core.now_s, PlanReady(core.plan_id, plan))


def admitted(core: Coordinator) -> list[TrainerId]:
    return [trainer.id for trainer in core.admitted()]


def test_from_the_first_that_a_plan_left_out_on_none_without_nodes_is_admitted() -> None:
    core = of(*(TrainerSpec(name, 1, 2) for name in (A, B, C, D)))
    assert core.problem is not None and core.problem.queue_share < 1
    assert admitted(core) == [A, B, C, D], "no plan has left anyone out"
    made(core, {A: 2, D: 1}, B)
    assert admitted(core) == [A, D]
    before = core.plan_id
    core.handle(1.0, TrainerSubmitted(TrainerSpec(E)))
    assert (core.plan_id, admitted(core)) == (before, [A, D]), "it only queues: those before it wait, too"
    core.handle(2.0, TrainerCancelled(B))
    assert core.solving
    core.handle(3.0, TrainerSubmitted(TrainerSpec(F)))
    assert core.plan_id > before + 1, "the plan that is being made may leave nobody out"
    made(core, {A: 1, D: 1, C: 1})
    assert admitted(core) == [A, C, D, E, F]


def test_until_the_next_decision_it_is_not_known_who_of_those_that_came_since_shares_the_pool() -> None:
    core = of(TrainerSpec(A, 1, 8), config=CoordinatorConfig(decide_every_s=300.0))
    made(core, {A: 3})
    core.handle(10.0, TrainerSubmitted(TrainerSpec(B)))
    assert (core.solving, admitted(core)) == (False, [A, B]), "no decision is due, and no node is free"
    assert [core.undecided(trainer) for trainer in core.trainers.values()] == [False, True]
    core.handle(300.0, DecisionDue())
    made(core, {A: 2, B: 1})
    assert [core.undecided(trainer) for trainer in core.trainers.values()] == [False, False]
    fixed = of(TrainerSpec(A), config=CoordinatorConfig(max_parallel_trainers=1, decide_every_s=300.0))
    assert not fixed.undecided(fixed.trainers[A]), "a user has decided"


def test_a_set_number_of_trainers_is_admitted_whatever_they_are_worth() -> None:
    core = of(*(TrainerSpec(name) for name in (A, B, C)), config=CoordinatorConfig(max_parallel_trainers=2))
    assert core.problem is not None and core.problem.queue_share == 1
    assert [candidate.trainer for candidate in core.problem.candidates] == admitted(core) == [A, B]


def test_a_small_pool_asks_for_the_nodes_that_its_queue_wants_up_to_the_largest_problem() -> None:
    many = [TrainerSpec(TrainerId(f"t{i}"), 1, 4, Curve.proportional(), fixed_curve=True) for i in range(MOST + 1)]
    core = of(*many)
    assert core.problem is not None and len(core.problem.candidates) == MOST
    assert core.wanted_nodes() == 4 * MOST
    assert of(*many, config=CoordinatorConfig(max_parallel_trainers=10)).wanted_nodes() == 40


def test_nodes_are_idle_because_of_a_bound_once_no_plan_is_awaited() -> None:
    core = of(TrainerSpec(A, 1, 1), TrainerSpec(B, 1, 1), config=CoordinatorConfig(max_parallel_trainers=1))
    assert core.idle() is None, "a plan is being made"
    made(core, {A: 1})
    assert core.idle() == Idle(2, Bound.PARALLEL, 1, 1)
    core.handle(1.0, TrainerCancelled(B))
    made(core, {A: 1})
    assert core.idle() == Idle(2, Bound.NODES, 1)
    core.handle(2.0, DrainRequested())
    assert core.idle() is None


def test_nodes_that_the_planner_leaves_idle_have_no_bound() -> None:
    core = of(TrainerSpec(A, 1, 1), TrainerSpec(B, 1, 1))
    made(core, {A: 1}, B)
    assert core.idle() is None
    made_for_both = of(TrainerSpec(A, 1, 2), TrainerSpec(B, 3, 3))
    made(made_for_both, {A: 2, B: 0})
    assert made_for_both.idle() is None, "b waits for three nodes"
