"""Manual interventions on trainers and pools: hold, release, resume, remove, and reopening a pool."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pilot.core.commands import DrainPool, FormGroup, Outcome, Solve, StopWorker, WarnOfBudget, WriteCheckpoint
from pilot.core.config import CoordinatorConfig
from pilot.core.coordinator import Coordinator
from pilot.core.events import (
    DrainRequested,
    EntriesLost,
    ExitCause,
    PoolChanged,
    PoolReopened,
    Progress,
    TrainerCancelled,
    TrainerHeld,
    TrainerReleased,
    TrainerRemoved,
    TrainerResumed,
)
from pilot.core.ids import Generation, NodeId, TrainerId
from pilot.core.pool.pool import hostname_order, join_order
from pilot.core.trainer.trainer import Phase
from tests.property.world import World, generous_plan

A, B = TrainerId("a"), TrainerId("b")


def two(config: CoordinatorConfig | None = None) -> World:
    """Two trainers; the first one, on three nodes, leaves none for the other."""
    world = World(config)
    world.join(3)
    for name in (A, B):
        world.submit(name, 1, 3, assumed_costs=True)
    world.settle()
    assert len(world.core.trainers[A].target) == 3
    return world


def test_a_held_trainer_saves_its_state_and_keeps_its_place() -> None:
    world = two()
    world.step(A)
    before = len(world.history)
    world.send(TrainerHeld(A, "held by the user"))
    world.settle()
    trainer = world.core.trainers[A]
    assert (trainer.phase, trainer.held, trainer.target, trainer.workers) == (Phase.QUEUED, "held by the user", [], {})
    kinds = list(map(type, world.given(object, before)))
    assert kinds.index(WriteCheckpoint) < kinds.index(StopWorker)
    assert len(world.core.trainers[B].target) == 3, "what it gave back is there for others"
    world.send(TrainerHeld(A))
    assert world.pending == [], "it is held already"
    world.send(TrainerReleased(A))
    world.settle()
    assert len(trainer.target) == 3, "it was submitted first"
    assert list(world.core.trainers) == [A, B]


def test_a_resumed_failure_is_last_and_keeps_its_generation() -> None:
    world = two()
    world.step(A)
    trainer = world.core.trainers[A]
    generation = trainer.generation
    world.send(world.worker_dies(A, trainer.target[0], ExitCause.RAISED))
    world.settle()
    assert trainer.outcome is Outcome.FAILED
    before = len(world.history)
    world.resume(A)
    world.settle()
    assert (trainer.phase, trainer.reason, list(world.core.trainers)) == (Phase.QUEUED, "", [B, A])
    world.send(TrainerCancelled(B))
    world.settle()
    formed = [c for c in world.given(FormGroup, before) if c.trainer == A]
    assert [group.generation for group in formed] == [generation + 1]
    assert (trainer.phase, trainer.step) == (Phase.RUNNING, 1)


def test_a_trainer_stopped_for_changed_code_resumes_with_the_new_version() -> None:
    world = two()
    trainer = world.core.trainers[A]
    world.load(A, trainer.target[0], "old")
    world.step(A)
    world.lose(list(trainer.target))
    world.join(1)
    world.complete(0, generous_plan)
    [node] = trainer.workers
    world.load(A, node, "new")
    world.settle()
    assert trainer.outcome is Outcome.STOPPED
    assert trainer.reason.startswith("/lib.py has changed since this trainer's first node loaded it (sha256 old then, ")
    assert not world.core.blame.blames
    world.send(TrainerCancelled(B))
    world.settle()
    world.resume(A)
    world.complete(0, generous_plan)
    world.load(A, node, "new")
    world.settle()
    assert (trainer.phase, trainer.code) == (Phase.RUNNING, {"/lib.py": "new"})


def test_only_ended_trainers_are_removed_and_finished_ones_not_resumed() -> None:
    world = two()
    for event in (TrainerResumed(A), TrainerRemoved(A), TrainerReleased(A), TrainerHeld(TrainerId("c"))):
        assert world.send(event) == []
    world.send(TrainerCancelled(A))
    world.settle()
    world.send(TrainerRemoved(A))
    assert list(world.core.trainers) == [B]
    world.submit(A)
    world.settle()
    assert list(world.core.trainers) == [B, A]


def test_a_pool_that_comes_up_again_has_its_trainers_and_the_next_configuration() -> None:
    world = two()
    world.step(A)
    first = world.core.config
    world.core = Coordinator(first, [replace(first, max_parallel_trainers=1)])
    for now_s, event, _ in world.history:
        world.core.handle(now_s, event)
    world.send(DrainRequested())
    world.settle()
    world.lose(list(world.nodes))
    assert {t.phase for t in world.core.trainers.values()} == {Phase.QUEUED}
    world.send(PoolReopened())
    world.join(4)
    world.settle()
    assert [len(t.target) for t in world.core.trainers.values()] == [3, 0], "only one trainer shares the pool now"
    assert world.core.trainers[A].step == 1


def test_a_pool_that_comes_up_again_hands_out_its_nodes_in_its_new_order() -> None:
    first = CoordinatorConfig(node_order=hostname_order)
    core, (a, b) = Coordinator(first, [replace(first, node_order=join_order)]), map(NodeId, "ab")
    for order in ([a, b], [b, a]):
        core.handle(0.0, PoolChanged(joined=(b,)))
        core.handle(1.0, PoolChanged(joined=(a,)))
        assert core.pool.available() == order
        core.handle(2.0, DrainRequested())
        core.handle(3.0, PoolChanged(lost=(a, b)))
        core.handle(4.0, PoolReopened())


def test_each_time_that_it_comes_up_again_a_pool_has_the_next_configuration_and_then_the_last_one() -> None:
    first, *later = (CoordinatorConfig(max_parallel_trainers=most) for most in (1, 2, 3))
    core, parallel = Coordinator(first, later), []
    for now_s in range(4):
        parallel.append(core.config.max_parallel_trainers)
        core.handle(now_s, DrainRequested())
        core.handle(now_s, PoolReopened())
    assert parallel == [1, 2, 3, 3]


def test_a_generation_that_lost_entries_may_have_had_is_never_granted_again() -> None:
    world = two()
    trainer = world.core.trainers[A]
    [group] = [trainer.group]
    world.send(EntriesLost(((A, Generation(7)), (TrainerId("gone"), Generation(9)))))
    assert trainer.group is group, "what became of it, its pilots know"
    assert any(isinstance(c, Solve) for c in world.history[-1][2]), "the answer to the last plan may be lost"
    world.lose([group.members[0]])
    [formed] = world.given(FormGroup, len(world.history) - 1)
    assert formed.generation == 8
    world.send(EntriesLost(((A, Generation(5)),)))
    assert trainer.forming is not None, "it is above that"
    world.send(EntriesLost(((A, Generation(8)),)))
    assert trainer.forming.generation == 8, "it is that"
    world.send(EntriesLost(((A, Generation(9)),)))
    assert trainer.forming.generation == 10


def test_a_measured_rescale_cost_replaces_all_assumed_ones() -> None:
    world = two()
    trainer = world.core.trainers[A]
    world.send(Progress(A, trainer.generation, 1, 0, 32, 100.0, rescale_s=0.3))
    before = len(world.history)
    world.join(1)
    [solve] = world.given(Solve, before)
    assert [candidate.rescale_up_s for candidate in solve.problem.candidates] == [0.3, 0.3]


def test_a_pool_s_budget_is_warned_of_once_and_drains_it_at_its_end() -> None:
    world = two(CoordinatorConfig(budget_node_hours=3.0, charge_factor=0.5))
    assert world.core.due_s() == pytest.approx(0.8 * 6 * 3600 / 3, abs=5)
    world.pass_time(5800.0)
    world.pass_time(50.0)
    warnings = world.given(WarnOfBudget)
    assert warnings == [
        WarnOfBudget(None, "80% of its budget of 3 charged node-hours (0.5 for an hour on a node) is used")
    ]
    world.step(A)
    before = len(world.history)
    world.pass_time(2000.0)
    world.settle()
    assert [c.reason for c in world.given(DrainPool, before)] == [
        "its budget of 3 charged node-hours (0.5 for an hour on a node) is used up"
    ]
    assert world.given(WriteCheckpoint, before)
    assert world.core.draining
    world.lose(list(world.nodes))
    world.send(PoolReopened())
    assert (world.core.usage.used_s, world.core.due(world.now_s)) == (0.0, [])


def test_a_trainer_s_budget_stops_it_with_its_state_saved_and_a_larger_one_lets_it_go_on() -> None:
    world = World()
    world.join(1)
    world.submit(A, budget_node_hours=1.0)
    world.settle()
    assert world.core.due_s() == pytest.approx(0.8 * 3600, abs=5), "the pool has none, that of the trainer comes"
    world.step(A)
    world.pass_time(3601.0)
    trainer = world.core.trainers[A]
    assert trainer.held == "its budget of 1 node-hours is used up"
    world.send(TrainerReleased(A))
    world.settle()
    assert (trainer.outcome, trainer.reason, trainer.held) == (
        Outcome.STOPPED,
        "its budget of 1 node-hours is used up",
        "",
    )
    assert world.given(WriteCheckpoint)
    world.closed.remove(A)
    world.send(TrainerResumed(A, 2.0))
    world.settle()
    assert (trainer.phase, world.core.due(world.now_s)) == (Phase.RUNNING, [])
