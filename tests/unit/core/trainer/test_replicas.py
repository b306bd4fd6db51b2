"""Trainers whose replicas have several nodes: these start, leave and end together."""

from typing import Any

import pytest

from pilot.core.commands import DissolveGroup, FormGroup, PauseGroup, StartWorker, StopWorker, WriteCheckpoint
from pilot.core.errors import UserError
from pilot.core.events import ExitCause, PoolChanged, TrainerHeld, WorkerExited
from pilot.core.ids import NodeId, TrainerId
from pilot.core.trainer.spec import SIZES_MAX, TrainerSpec
from pilot.core.trainer.transitions import DEATHS_ALLOWED
from tests.property.world import World, generous_plan

T1 = TrainerId("t1")


def world_of(nodes: int, **spec: object) -> World:
    """A pool of so many nodes, with a trainer that has formed its group."""
    world = World()
    world.join(nodes)
    world.submit("t1", nodes_per_replica=2, **spec)
    world.settle()
    world.step(T1)
    return world


def pause(world: World) -> None:
    """The group that is to pause has done so."""
    world.complete(next(i for i, p in enumerate(world.pending) if isinstance(p, PauseGroup)), generous_plan)


def members(world: World) -> tuple[NodeId, ...]:
    return world.core.trainers[T1].members


def test_replicas_are_of_neighbouring_nodes_and_the_odd_node_stays_free() -> None:
    world = world_of(5)
    started = [(c.node, c.replica, c.place) for c in world.given(StartWorker)]
    a, b, c, d, e = world.nodes
    assert started == [(a, 1, 0), (b, 1, 1), (c, 2, 0), (d, 2, 1)]
    assert members(world) == (a, b, c, d)
    assert e not in world.core.pool.owner


def test_a_lost_node_takes_its_replica_and_the_others_go_on_at_once() -> None:
    world = world_of(5)
    a, b, c, d, e = world.nodes
    before = len(world.history)
    world.lose([c])
    assert [(f.members, f.previous) for f in world.given(FormGroup, before)] == [((a, b), None)]
    assert d not in world.core.trainers[T1].holders()
    world.settle()
    assert [(s.node, s.kill) for s in world.given(StopWorker, before)] == [(d, True)]
    assert [(s.node, s.replica, s.place) for s in world.given(StartWorker, before)] == [(d, 3, 0), (e, 3, 1)]
    assert members(world) == (a, b, d, e)
    assert world.core.trainers[T1].counts.worker_deaths == 0


def test_its_living_node_is_free_for_others_if_no_spare_one_is_there() -> None:
    world = world_of(4)
    a, b, c, d = world.nodes
    world.submit("t2")
    world.lose([c])
    world.settle()
    assert (members(world), world.core.trainers[TrainerId("t2")].members) == ((a, b), (d,))


def test_a_process_that_ends_because_its_mate_is_gone_counts_against_nobody() -> None:
    world = world_of(4)
    a, b, c, d = world.nodes
    world.send(world.worker_dies(T1, d, ExitCause.MATE_LOST))  # before the loss of the mate is known
    world.lose([c])
    world.settle()
    world.step(T1)
    trainer = world.core.trainers[T1]
    assert (trainer.members, trainer.deaths_in_a_row, trainer.raised) == ((a, b), 0, {})
    assert (trainer.counts.worker_deaths, trainer.evidence.deaths, trainer.evidence.aside) == (0, {}, {})


def test_replicas_that_always_lose_their_connections_are_not_tried_for_ever() -> None:
    world = world_of(2)
    a, _ = members(world)
    for _ in range(DEATHS_ALLOWED):
        world.send(world.worker_dies(T1, a, ExitCause.MATE_LOST))
        world.settle()
    assert [node for node, _, _ in world.core.blame.set_aside()] == [a]
    assert not members(world)


def test_with_notice_a_replica_leaves_after_a_step() -> None:
    world = world_of(4)
    a, b, c, d = world.nodes
    before, generation = len(world.history), world.generations[T1]
    world.send(PoolChanged(noticed=(d,), deadline_s=world.now_s + 30))
    assert [(f.members, f.previous) for f in world.given(FormGroup, before)] == [((a, b), generation)]
    assert not world.given(StopWorker, before)
    assert not world.given(DissolveGroup, before)
    world.settle()
    assert [(s.node, s.kill) for s in world.given(StopWorker, before)] == [(c, False), (d, False)]


def test_all_nodes_of_one_replica_write_their_parts() -> None:
    world = world_of(4)
    a, b, _, _ = world.nodes
    world.send(TrainerHeld(T1))
    pause(world)
    assert [(w.node, w.mates) for w in world.given(WriteCheckpoint)] == [(a, (b,))]
    assert not world.given(StopWorker)
    world.settle()
    assert world.core.trainers[T1].rests


def test_the_only_replica_is_saved_before_it_leaves() -> None:
    world = world_of(2)
    a, b = world.nodes
    world.send(PoolChanged(noticed=(b,), deadline_s=world.now_s + 30))
    pause(world)
    assert [(w.node, w.mates) for w in world.given(WriteCheckpoint)] == [(a, (b,))]
    assert not world.given(StopWorker)
    world.settle()
    assert world.core.trainers[T1].saved


def test_a_replica_that_loses_a_node_while_it_writes_no_longer_does() -> None:
    world = world_of(2)
    a, b = world.nodes
    world.send(TrainerHeld(T1))
    pause(world)
    assert list(world.core.trainers[T1].writing) == [a]
    world.lose([b])
    assert not world.core.trainers[T1].writing
    world.pending.clear()
    world.send(WorkerExited(T1, a, ExitCause.STOPPED))
    assert world.core.trainers[T1].rests


def test_both_replicas_broken_start_from_the_newest_checkpoint() -> None:
    world = world_of(6, max_nodes=4)
    a, b, c, d, e, f = world.nodes
    before = len(world.history)
    world.lose([a, c])
    assert not world.given(FormGroup, before)
    world.settle()
    (formed,) = world.given(FormGroup, before)
    assert (set(formed.members), world.core.trainers[T1].counts.lost_steps) == ({b, d, e, f}, 0)


def test_sizes_are_multiples_of_a_replica() -> None:
    assert TrainerSpec(T1, 3, 9, nodes_per_replica=2).sizes == (4, 6, 8)
    assert TrainerSpec(T1, nodes_per_replica=4, sizes=(4, 16)).max_nodes == 16
    mistakes: dict[str, dict[str, Any]] = {
        "nodes_per_replica must be between 1 and max_nodes 2, got 3": {"max_nodes": 2, "nodes_per_replica": 3},
        "the size 6 is not a multiple of 4": {"sizes": (4, 6), "nodes_per_replica": 4},
        f"more than {SIZES_MAX}": {"max_nodes": 4 * SIZES_MAX, "nodes_per_replica": 2},
        "no multiple of 4": {"min_nodes": 5, "max_nodes": 7, "nodes_per_replica": 4},
    }
    for mistake, given in mistakes.items():
        with pytest.raises(UserError, match=mistake):
            TrainerSpec(T1, **given)
