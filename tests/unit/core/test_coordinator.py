"""How many nodes the pool should have."""

from __future__ import annotations

from pilot.core.curve import Curve
from pilot.core.events import DrainRequested, TrainerSubmitted
from pilot.core.evidence import SetAside
from pilot.core.ids import TrainerId
from pilot.core.spec import TrainerSpec
from pilot.core.study_events import StudySubmitted
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
