"""What befell a trainer is counted as what it was."""

from __future__ import annotations

from dataclasses import asdict

from pilot.core.events import GroupFormed, PoolChanged, TrainerSubmitted
from pilot.core.ids import TrainerId
from pilot.core.spec import TrainerSpec
from tests.property.world import World, generous_plan

T = TrainerId("t")


def test_changes_by_plan_notices_losses_and_deaths_are_told_apart() -> None:
    world = World()
    world.send(TrainerSubmitted(TrainerSpec(T, 1, 3)))
    counts = world.core.trainers[T].counts
    expected = dict.fromkeys(asdict(counts), 0)
    world.join(1)
    world.settle()
    assert asdict(counts) == expected, "a start is no rescale"
    world.join(2)
    world.settle()
    assert asdict(counts) == (expected := {**expected, "rescales_up": 1})
    world.send(PoolChanged(leaving=(world.nodes[2],), deadline_s=1e9))
    world.settle()
    assert asdict(counts) == (expected := {**expected, "rescales_down": 1, "preemptions": 1})
    world.lose([world.nodes[2]])
    assert asdict(counts) == expected, "its notice was counted"
    world.lose([world.nodes[1]])
    world.settle()
    assert asdict(counts) == (expected := {**expected, "losses": 1})
    world.send(world.worker_dies(T, world.nodes[0]))
    world.settle()
    assert asdict(counts) == {**expected, "worker_deaths": 1}


def test_steps_are_lost_where_a_checkpoint_is_older_than_what_was_done() -> None:
    world = World()
    world.join(1)
    world.send(TrainerSubmitted(TrainerSpec(T, 1, 1)))
    world.settle()
    for _ in range(5):
        world.step(T)
    trainer = world.core.trainers[T]
    world.lose([world.nodes[0]])
    world.join(1)
    while trainer.forming is None:
        world.complete(0, generous_plan)
    world.send(GroupFormed(T, trainer.forming.generation, 3, resumed=3))
    assert (trainer.step, trainer.counts.lost_steps) == (3, 2)
