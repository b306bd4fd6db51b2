"""What is dropped of what a pilot says, and what never is."""

from __future__ import annotations

import pytest

from pilot.core.commands import WriteCheckpoint
from pilot.core.events import ExitCause, TrainerFinished, WorkerExited
from pilot.protocol import wire
from pilot.service.agents.intake import Intake, Quota
from pilot.service.agents.pending import Given
from tests.unit.service.agents.test_stall_checks import NODES, G, Stage, T

COMPLETING = [
    wire.WorkerReady("t", 0.1),
    wire.WorkerExited("t", "died", "killed by signal 9"),
    wire.RankAddress("t", 1, {"rank-0": "x"}, "127.0.0.1:1"),
    wire.RankJoined("t", 1),
    wire.GroupFormed("t", 1, 0),
    wire.GroupBroken("t", 1, "it broke"),
    wire.RankPaused("t", 1, 5),
    wire.RankExamined("t", 1, "slow"),
    wire.TrainerFinished("t", 1, 5, 50),
]


@pytest.fixture
def talked() -> tuple[Stage, Intake, Quota]:
    """A pilot that has said all that it may."""
    stage, quota = Stage(), Quota()
    intake = Intake(stage.core, stage.pending)
    while intake.accepted(0.0, NODES[0], quota, wire.Progress("t", 1, 1, 0, 1)) is not None:
        pass
    return stage, intake, quota


@pytest.mark.parametrize("message", COMPLETING, ids=lambda message: type(message).__name__)
def test_what_completes_a_command_or_ends_a_worker_is_never_too_much(
    talked: tuple[Stage, Intake, Quota], message: wire.FromAgent
) -> None:
    _, intake, quota = talked
    assert intake.accepted(0.0, NODES[0], quota, message) == message


def test_a_failed_write_is_heard_if_it_was_asked_for(talked: tuple[Stage, Intake, Quota]) -> None:
    stage, intake, quota = talked
    failed = wire.CheckpointWritten("t", 1, 5, asked=True, error="the disk is full")
    assert intake.accepted(0.0, NODES[0], quota, failed) is None
    stage.pending.writing[T, NODES[0]] = Given(WriteCheckpoint(T, NODES[0], "why"), 0.0)
    assert intake.accepted(0.0, NODES[0], quota, failed) == failed


def test_the_end_of_a_trainer_is_heard_once(talked: tuple[Stage, Intake, Quota]) -> None:
    stage, intake, quota = talked
    stage.post(TrainerFinished(T, G, 5, 50))
    assert intake.accepted(0.0, NODES[0], quota, wire.TrainerFinished("t", 1, 5, 50)) is None
    stage.post(WorkerExited(T, NODES[0], ExitCause.STOPPED))
    assert intake.accepted(0.0, NODES[0], quota, wire.WorkerExited("t", "died")) is None, "it runs nothing any more"
