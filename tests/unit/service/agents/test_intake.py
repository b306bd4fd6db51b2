"""Which messages of a pilot are dropped, and which never are."""

from __future__ import annotations

import pytest

from pilot.core.commands import WriteCheckpoint
from pilot.core.events import ExitCause, TrainerFinished, WorkerExited
from pilot.protocol import wire
from pilot.service.agents.intake import Intake, Quota
from pilot.service.agents.pending import Given
from tests.unit.service.stage import A, B, G, Stage, T

COMPLETING = [
    wire.WorkerReady(T, 0.1),
    wire.WorkerExited(T, "died", "killed by signal 9"),
    wire.RankAddress(T, 1, {"rank-0": "x"}, "127.0.0.1:1"),
    wire.RankJoined(T, 1),
    wire.GroupFormed(T, 1, 0),
    wire.GroupBroken(T, 1, "it broke"),
    wire.RankPaused(T, 1, 5),
    wire.RankExamined(T, 1, "slow"),
    wire.TrainerFinished(T, 1, 5, 50),
]


class Exhausted(Stage):
    """A pilot has sent all that it may."""

    def __init__(self) -> None:
        super().__init__()
        self.trains(A, B)
        self._intake, self._quota = Intake(self.core, self.pending), Quota()
        while self.accepted(wire.Progress(T, 1, 1, 0, 1)) is not None:
            pass

    def accepted(self, message: wire.FromAgent) -> wire.FromAgent | None:
        return self._intake.accepted(0.0, A, self._quota, message)


@pytest.mark.parametrize("message", COMPLETING, ids=lambda message: type(message).__name__)
def test_a_message_that_completes_a_command_or_ends_a_worker_is_never_dropped(message: wire.FromAgent) -> None:
    assert Exhausted().accepted(message) == message


def test_a_failed_write_is_accepted_if_it_was_requested() -> None:
    stage = Exhausted()
    failed = wire.CheckpointWritten(T, 1, 5, asked=True, error="the disk is full")
    assert stage.accepted(failed) is None
    stage.pending.writing[T, A] = Given(WriteCheckpoint(T, A, "why"), 0.0)
    assert stage.accepted(failed) == failed


def test_the_end_of_a_trainer_is_accepted_once() -> None:
    stage = Exhausted()
    stage.post(TrainerFinished(T, G, 5, 50))
    assert stage.accepted(wire.TrainerFinished(T, 1, 5, 50)) is None
    stage.post(WorkerExited(T, A, ExitCause.STOPPED))
    assert stage.accepted(wire.WorkerExited(T, "died")) is None, "it runs nothing any more"
