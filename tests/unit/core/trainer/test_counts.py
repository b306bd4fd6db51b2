"""A trainer's preemptions and losses are counted as such."""

from __future__ import annotations

from dataclasses import asdict

import pytest

from pilot.core.curves.measured import Measured, RescaleCosts
from pilot.core.events import GroupFormed, PoolChanged, Progress, TrainerSubmitted
from pilot.core.ids import Generation, NodeId, TrainerId
from pilot.core.trainer.spec import TrainerSpec
from pilot.core.trainer.trainer import Group, Trainer, Worker, WorkerPhase
from pilot.core.trainer.transitions import note
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
    world.send(PoolChanged(noticed=(world.nodes[2],), deadline_s=1e9))
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


@pytest.mark.parametrize(("after", "up_s", "down_s"), [("abc", 7.0, 10.0), ("bc", 7.0, 10.0), ("b", 20.0, 7.0)])
def test_what_a_switch_costs_counts_for_growing_also_where_nodes_were_replaced(
    after: str, up_s: float, down_s: float
) -> None:
    spec = TrainerSpec(T)
    trainer = Trainer(spec, Measured(spec), grew=len(after) < 2)
    trainer.workers = {NodeId(node): Worker(0, WorkerPhase.READY) for node in "abc"}
    trainer.group, trainer.forming = (
        Group(Generation(number), tuple(map(NodeId, members))) for number, members in ((1, "ab"), (2, after))
    )
    note(0.0, trainer, GroupFormed(T, Generation(2), 5))
    note(1.0, trainer, Progress(T, Generation(2), 6, 0, 32, rescale_s=7.0))
    assert [trainer.measured.rescale_s(RescaleCosts(5), up=up) for up in (True, False)] == [up_s, down_s]
    assert (trainer.counts.rescales_up, trainer.counts.rescales_down) == (len(after) > 2, len(after) < 2)
