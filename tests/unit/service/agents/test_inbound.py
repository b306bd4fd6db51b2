"""Agents complete what is pending, once; anything late, repeated, foreign or nonsensical changes nothing."""

from __future__ import annotations

import math

import pytest

from pilot.core.coordinator import Coordinator
from pilot.core.events import (
    CheckpointPublished,
    CheckpointWritten,
    CodeLoaded,
    DrainRequested,
    Event,
    ExitCause,
    GroupBroken,
    GroupFormed,
    GroupPaused,
    LedgerRange,
    PoolChanged,
    Progress,
    ScriptChecked,
    TrainerFinished,
    TrainerSubmitted,
    WorkerExited,
    WorkerReady,
)
from pilot.core.ids import Generation, NodeId
from pilot.core.trainer.proof import ProofState
from pilot.core.trainer.spec import Checking, TrainerSpec
from pilot.protocol import wire
from pilot.service.agents import inbound
from pilot.service.agents.inbound import Inbound
from pilot.service.agents.intake import in_lines
from tests.unit.service.agents.test_roster import roster
from tests.unit.service.stage import A, B, C, G, Stage, T


class Desk(Stage):
    """A core, and the translator of its agents' messages."""

    def __init__(self) -> None:
        super().__init__()
        self._inbound = Inbound(self, roster(A, B, C), lambda *_: None)

    def hear(self, node: NodeId, message: wire.FromAgent) -> list[Event]:
        """The events that a message of ``node`` means."""
        events = self._inbound.events_of(node, message)
        assert events is not None
        return list(events)

    def only(self, node: NodeId, message: wire.FromAgent, *ignored: tuple[NodeId, wire.FromAgent]) -> list[Event]:
        """The events of ``message``, which is heard from ``node`` once; the other messages mean nothing."""
        for other in ignored:
            assert self.hear(*other) == []
        events = self.hear(node, message)
        self.post(*events)
        assert self.hear(node, message) == []
        return events


@pytest.fixture
def starting() -> Desk:
    desk = Desk()
    desk.starts(A, B, min_nodes=2)
    return desk


@pytest.fixture
def forming(starting: Desk) -> Desk:
    assert starting.forms(A, B).members == (A, B)
    return starting


@pytest.fixture
def pausing(forming: Desk) -> Desk:
    forming.post(GroupFormed(T, G, 0), DrainRequested())
    assert forming.pending.pausing
    return forming


def test_a_worker_is_ready_once_and_only_where_it_was_started(starting: Desk) -> None:
    up = wire.WorkerReady(T, 1.0)
    assert starting.only(A, up, (C, up), (A, wire.WorkerReady("other", 1.0))) == [WorkerReady(T, A)]


def test_a_worker_ends_where_it_was(forming: Desk) -> None:
    down = wire.WorkerExited(T, "died", "signal 9", log="/logs/n.log")
    for node, message in ((C, down), (B, wire.WorkerExited("other", "died"))):
        assert forming.hear(node, message) == []
    assert forming.hear(B, down) == [WorkerExited(T, B, ExitCause.DIED, "signal 9\n(log: /logs/n.log)")]


def test_an_unknown_cause_and_an_endless_detail_do_no_harm(forming: Desk) -> None:
    [event] = forming.hear(A, in_lines(wire.WorkerExited(T, "bored", "line\n" * 8000)))
    assert isinstance(event, WorkerExited)
    assert event.cause is ExitCause.DIED
    assert len(event.detail) < 2000 and len(event.detail.splitlines()) == 1


def test_a_group_is_formed_once_by_its_leader(forming: Desk) -> None:
    up = wire.GroupFormed(T, 1, 5, resumed=None)
    assert forming.only(A, up, (B, up), (A, wire.GroupFormed(T, 2, 5))) == [GroupFormed(T, G, 5, None)]


def test_a_group_is_broken_by_a_member_while_it_lives(forming: Desk) -> None:
    broken = wire.GroupBroken(T, 1, "a rank died")
    foreign = (C, broken), (B, wire.GroupBroken(T, 7, "no")), (B, wire.GroupBroken("other", 1, "no"))
    assert forming.only(B, broken, *foreign) == [GroupBroken(T, G, "b: a rank died", B)]


def test_a_pause_needs_the_report_of_every_member_and_is_one_event(pausing: Desk) -> None:
    paused = wire.RankPaused(T, 1, 9)
    assert pausing.only(B, paused, (A, paused), (A, paused), (C, paused)) == [GroupPaused(T, G, 9)]


def test_ranks_that_paused_after_different_steps_are_a_broken_group(pausing: Desk) -> None:
    pausing.hear(A, wire.RankPaused(T, 1, 9))
    [event] = pausing.hear(B, wire.RankPaused(T, 1, 8))
    assert isinstance(event, GroupBroken)


def test_a_checkpoint_counts_where_it_was_requested(pausing: Desk) -> None:
    pausing.post(GroupPaused(T, G, 9))
    [(_, writer)] = pausing.pending.writing
    other = A if writer == B else B
    done = wire.CheckpointWritten(T, 1, 9, asked=True, error="no space left")
    periodic = wire.CheckpointWritten(T, 1, 9, asked=False, path="/x.h5", alone_s=1.5)
    assert pausing.hear(other, done) == pausing.hear(C, periodic) == []
    assert pausing.hear(writer, periodic) == [CheckpointPublished(T, 9, 1.5)]
    assert pausing.hear(writer, done) == [CheckpointWritten(T, writer, 9, "no space left")]
    assert pausing.remarks == [f"a checkpoint at step 9 failed on {node}: no space left" for node in (other, writer)]


def test_progress_is_the_leaders_and_impossible_measurements_are_left_out(forming: Desk) -> None:
    odd = (math.nan, math.inf, -1.0)
    report = wire.Progress(T, 1, 3, 0, 96, *odd, ledger=[(1, 0, 0, 3, 0, 96)], metrics={"b": math.nan, "a": 1.0})
    assert forming.hear(B, report) == []
    [event] = forming.hear(A, report)
    assert isinstance(event, Progress)
    assert (event.samples_per_s, event.stall_s, event.rescale_s) == (None, None, None)
    assert event.ledger == (LedgerRange(Generation(1), 0, 0, 3, 0, 96),)
    assert [name for name, _ in event.metrics] == ["a", "b"]


@pytest.mark.parametrize(
    ("metrics", "total"),
    [({"epochs": 3.0, "epoch_samples": 100.0}, 300.0), ({"iterations": 6.0}, 192.0), ({}, None)],
)
def test_progress_has_the_length_of_the_loop_if_it_is_known(
    forming: Desk, metrics: dict[str, float], total: float | None
) -> None:
    [event] = forming.hear(A, wire.Progress(T, 1, 3, 0, 96, metrics=metrics))
    assert isinstance(event, Progress)
    assert event.total_samples == total


def test_reports_that_are_known_are_left_out(forming: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Coordinator, "reports_of", lambda _core, trainer: 2 if trainer == T else 0)
    [event] = forming.hear(A, wire.Progress(T, 1, 3, 0, 96, reports=[(1, 0.1), (2, 0.2), (3, 0.3)]))
    assert isinstance(event, Progress)
    assert event.reports == ((3, 0.3),)


def test_the_end_of_a_trainer_brings_its_last_metrics(forming: Desk) -> None:
    finished = wire.TrainerFinished(T, 1, 7, 70, {"accuracy": 0.9})
    assert forming.hear(B, finished) == []
    last, end = forming.hear(A, finished)
    assert isinstance(last, Progress)
    assert last.metrics == (("accuracy", 0.9),)
    assert end == TrainerFinished(T, G, 7, 70)


def test_of_loaded_files_only_new_and_different_ones_are_events(
    starting: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    def loaded(node: NodeId, **files: str) -> list[Event]:
        return starting.hear(node, wire.CodeLoaded(T, {f"/{name}.py": sha for name, sha in files.items()}))

    events = loaded(A, lib="1", util="1")
    assert events == [CodeLoaded(T, A, (("/lib.py", "1"), ("/util.py", "1")))]
    starting.post(*events)
    assert loaded(B, lib="1", util="1") == []
    assert loaded(B, lib="1", more="1") == [CodeLoaded(T, B, (("/more.py", "1"),))]
    assert loaded(C, lib="2") == []
    monkeypatch.setattr(inbound, "FILES_MAX", 2)
    assert loaded(B, more="1") == [], "so many are not stored"
    starting.post(*loaded(B, lib="2", more="1"))
    assert B not in starting.core.trainers[T].target
    assert loaded(B, lib="2") == [], "it is being stopped"


def test_a_script_is_checked_once_and_only_where_it_was_ordered() -> None:
    desk = Desk()
    desk.post(PoolChanged(joined=(A,)), TrainerSubmitted(TrainerSpec(T, 1, 2, check=Checking.AUTO)))
    desk.plan(t=1)
    desk.forms(A)
    desk.post(GroupFormed(T, G, 0))
    found = wire.ScriptChecked(T, "differs", "its loss is a sum")
    assert desk.only(A, found, (B, found)) == [ScriptChecked(T, A, ProofState.DIFFERS, "its loss is a sum")]
