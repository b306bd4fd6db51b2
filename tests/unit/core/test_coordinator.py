"""How many nodes the pool should have."""

from __future__ import annotations

import pytest

from pilot.core.coordinator import Coordinator
from pilot.core.curves.curve import Curve
from pilot.core.events import DrainRequested, ExitCause, PlanReady, PoolChanged, TrainerSubmitted, WorkerExited
from pilot.core.ids import NodeId, TrainerId
from pilot.core.plan.problem import Plan, PlanStatus
from pilot.core.pool.evidence import SetAside
from pilot.core.study.events import StudySubmitted
from pilot.core.trainer.spec import TrainerSpec
from tests.property.test_studies import study
from tests.property.world import World, generous_plan


def test_it_is_what_trainers_want_and_one_more_for_each_node_that_none_can_use() -> None:
    world = World()
    world.send(TrainerSubmitted(TrainerSpec(TrainerId("t"), 1, 4, Curve.proportional(), fixed_curve=True)))
    assert world.core.wanted_nodes() == 4
    world.join(3)
    world.settle()
    assert (world.core.wanted_nodes(), world.core.useless()) == (4, 0)
    world.join(2)
    world.settle()
    [idle] = world.core.pool.available()
    world.core.pool.aside[idle] = SetAside(9e9, "it failed")
    assert (world.core.wanted_nodes(), world.core.useless()) == (5, 1)


def test_those_that_are_kept_for_trials_are_among_them() -> None:
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
    core, trainer, nodes = Coordinator(), TrainerId("t"), (NodeId("n1"), NodeId("n2"))
    core.handle(0.0, PoolChanged(joined=nodes))
    core.handle(0.0, TrainerSubmitted(TrainerSpec(trainer)))
    core.handle(0.0, PlanReady(core.plan_id, Plan(PlanStatus.OPTIMAL, ((trainer, 1),), 0.0)))
    (node,) = core.trainers[trainer].workers
    core.handle(1.0, WorkerExited(trainer, node, cause, "its folder: Stale file handle"))
    assert node in core.trainers[trainer].evidence.aside
    assert core.useless() == replaced
