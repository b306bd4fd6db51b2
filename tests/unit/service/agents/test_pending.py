"""Pending commands follow from the journal's entries alone, and equal what a world of agents still has to answer."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings

from pilot.core.commands import FormGroup, PauseGroup, Solve, StartWorker, StopWorker, WriteCheckpoint
from pilot.core.events import PoolChanged
from pilot.core.ids import Generation, TrainerId
from pilot.service.agents.pending import Given, PendingCommands
from tests.property.test_core import play, scripts
from tests.property.world import World
from tests.unit.service.stage import A, B, T


def pending_of(world: World) -> PendingCommands:
    pending = PendingCommands()
    for entry in world.history:
        pending.note(*entry)
    return pending


def waiting(pending: PendingCommands) -> list[object]:
    groups = (pending.starting, pending.stopping, pending.writing, *pending.of_groups)
    found: list[object] = [given.command for group in groups for given in group.values()]
    return found + ([pending.solve] if pending.solve is not None else [])


@settings(max_examples=200, deadline=None)
@given(scripts)
def test_they_are_what_the_world_still_has_to_answer(script: list[tuple[str, int]]) -> None:
    world = play(script)
    assert sorted(map(repr, waiting(pending_of(world)))) == sorted(map(repr, world.pending))


@settings(max_examples=50, deadline=None)
@given(scripts)
def test_nothing_is_pending_when_everything_was_answered(script: list[tuple[str, int]]) -> None:
    world = play(script)
    world.settle()
    assert waiting(pending_of(world)) == []


def test_groups_of_a_trainer_that_ended_are_forgotten() -> None:
    world = play([("join", 2), ("submit", 3), *[("answer", n) for n in range(12)], ("cancel", 0)])
    world.settle()
    assert any(isinstance(c, FormGroup) for _, _, commands in world.history for c in commands)
    assert pending_of(world).groups == {}


def test_orders_that_a_node_gets_once_more() -> None:
    pending = PendingCommands()
    start, stop = StartWorker(T, A, ""), StopWorker(TrainerId("u"), A, "")
    write = WriteCheckpoint(TrainerId("v"), A, "")
    pause = PauseGroup(T, Generation(3), (A, B), "")
    pending.note(1.0, PoolChanged(), [start, stop, write, pause, StartWorker(T, B, "")], 7)
    pending.note(5.0, PoolChanged(), [StartWorker(TrainerId("later"), A, "")])
    again = [start, stop, write, replace(pause, members=(A,))]
    assert pending.on(A, since_s=2.0) == [Given(command, 1.0, 7) for command in again]
    pending.restart(9.0)
    assert pending.on(A, since_s=2.0) == []
    assert {given.since_s for given in pending.starting.values()} == {9.0}


def test_a_newer_question_takes_the_place_of_an_older_one() -> None:
    world = play([("join", 0), ("submit", 0), ("submit", 0)])
    solves = [c for _, _, commands in world.history for c in commands if isinstance(c, Solve)]
    assert len(solves) == 2
    assert pending_of(world).solve is solves[-1]
