"""Agents complete what is pending, once; anything late, repeated, foreign or nonsensical changes nothing."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest

from pilot.core.commands import CheckScript, FormGroup, PauseGroup, StartWorker, WriteCheckpoint
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
    Progress,
    ScriptChecked,
    TrainerFinished,
    WorkerExited,
    WorkerReady,
)
from pilot.core.ids import Generation, NodeId, TrainerId
from pilot.core.trainer.proof import ProofState
from pilot.protocol import wire
from pilot.service.agents import inbound
from pilot.service.agents.inbound import Inbound
from pilot.service.agents.intake import DETAIL_MAX, in_lines
from pilot.service.agents.pending import PendingCommands
from tests.property.test_core import play
from tests.property.world import World, generous_plan

T = TrainerId("t0")


class Desk:
    """A world, its pending commands, and the translator of its agents' messages."""

    def __init__(self, script: list[tuple[str, int]]) -> None:
        self.world: World = play(script)
        self.pending = PendingCommands()
        driver = SimpleNamespace(core=self.world.core, pending=self.pending, overfull=False, remark=self.remark)
        self.remarks: list[str] = []
        self._inbound = Inbound(driver, lambda *_: None)
        self._noted = 0
        self.catch_up()

    def remark(self, *, text: str, **_: str) -> None:
        self.remarks.append(text)

    def hear(self, node: NodeId, message: wire.FromAgent) -> list[Event]:
        """The events that a message of ``node`` means."""
        events = self._inbound.events_of(node, message)
        assert events is not None
        return list(events)

    def catch_up(self) -> None:
        for entry in self.world.history[self._noted :]:
            self.pending.note(*entry)
        self._noted = len(self.world.history)

    def send(self, events: list[Event]) -> None:
        """Passed to the core, as the driver would."""
        for event in events:
            self.world.send(event)
        self.catch_up()

    def waits(self, kind: type) -> object:
        return next(p for p in self.world.pending if isinstance(p, kind))


START = [("join", 1), ("submit", 4)]
"""Two nodes, one trainer for exactly 2 nodes."""


@pytest.fixture
def forming() -> Desk:
    desk = Desk([*START, ("answer", 0), ("answer", 0), ("answer", 0)])
    assert isinstance(desk.waits(FormGroup), FormGroup)
    return desk


def members(desk: Desk) -> tuple[NodeId, ...]:
    return desk.pending.groups[T, Generation(1)].members


def test_a_worker_is_ready_once_and_only_where_it_was_started() -> None:
    desk = Desk([*START, ("answer", 0)])
    start = desk.waits(StartWorker)
    assert isinstance(start, StartWorker)
    up = wire.WorkerReady(T, 1.0)
    assert desk.hear(NodeId("elsewhere"), up) == []
    assert desk.hear(start.node, wire.WorkerReady("other", 1.0)) == []
    events = desk.hear(start.node, up)
    assert events == [WorkerReady(T, start.node)]
    desk.send(events)
    assert desk.hear(start.node, up) == []


def test_a_worker_ends_where_it_was(forming: Desk) -> None:
    node = members(forming)[1]
    down = wire.WorkerExited(T, "died", "signal 9", log="/logs/n.log")
    assert forming.hear(NodeId("elsewhere"), down) == []
    assert forming.hear(node, wire.WorkerExited("other", "died")) == []
    events = forming.hear(node, down)
    assert events == [WorkerExited(T, node, ExitCause.DIED, "signal 9\n(log: /logs/n.log)")]


def test_an_unknown_cause_and_an_endless_detail_do_no_harm(forming: Desk) -> None:
    endless = wire.WorkerExited(T, "bored", "line\n" * DETAIL_MAX)
    [event] = forming.hear(members(forming)[0], in_lines(endless))
    assert isinstance(event, WorkerExited)
    assert event.cause is ExitCause.DIED
    assert DETAIL_MAX - 9 < len(event.detail) <= DETAIL_MAX


def test_a_group_is_formed_once_by_its_leader(forming: Desk) -> None:
    leader, other = members(forming)
    up = wire.GroupFormed(T, 1, 5, resumed=None)
    assert forming.hear(other, up) == []
    assert forming.hear(leader, wire.GroupFormed(T, 2, 5)) == []
    events = forming.hear(leader, up)
    assert events == [GroupFormed(T, Generation(1), 5, None)]
    forming.send(events)
    assert forming.hear(leader, up) == []


def test_a_group_is_broken_by_a_member_while_it_lives(forming: Desk) -> None:
    member = members(forming)[1]
    for node, trainer, generation in (("elsewhere", T, 1), (member, T, 7), (member, "other", 1)):
        assert forming.hear(NodeId(node), wire.GroupBroken(trainer, generation, "no")) == []
    events = forming.hear(member, wire.GroupBroken(T, 1, "a rank died"))
    assert events == [GroupBroken(T, Generation(1), f"{member}: a rank died", member)]
    forming.send(events)
    assert forming.hear(member, wire.GroupBroken(T, 1, "again")) == []


def pausing(forming: Desk) -> Desk:
    leader = members(forming)[0]
    forming.send(forming.hear(leader, wire.GroupFormed(T, 1, 0)))
    forming.send([DrainRequested()])
    assert isinstance(forming.waits(PauseGroup), PauseGroup)
    return forming


def test_a_pause_needs_the_word_of_every_member_and_says_so_once(forming: Desk) -> None:
    desk = pausing(forming)
    first, second = members(desk)
    assert desk.hear(first, wire.RankPaused(T, 1, 9)) == []
    assert desk.hear(first, wire.RankPaused(T, 1, 9)) == []
    assert desk.hear(NodeId("elsewhere"), wire.RankPaused(T, 1, 9)) == []
    events = desk.hear(second, wire.RankPaused(T, 1, 9))
    assert events == [GroupPaused(T, Generation(1), 9)]
    desk.send(events)
    assert desk.hear(second, wire.RankPaused(T, 1, 9)) == []


def test_ranks_that_paused_after_different_steps_are_a_broken_group(forming: Desk) -> None:
    desk = pausing(forming)
    first, second = members(desk)
    desk.hear(first, wire.RankPaused(T, 1, 9))
    [event] = desk.hear(second, wire.RankPaused(T, 1, 8))
    assert isinstance(event, GroupBroken)


def test_a_checkpoint_counts_where_it_was_asked_for(forming: Desk) -> None:
    desk = pausing(forming)
    for node in members(desk):
        desk.send(desk.hear(node, wire.RankPaused(T, 1, 9)))
    write = desk.waits(WriteCheckpoint)
    assert isinstance(write, WriteCheckpoint)
    done = wire.CheckpointWritten(T, 1, 9, asked=True, error="no space left")
    other = next(n for n in members(desk) if n != write.node)
    assert desk.hear(other, done) == []
    periodic = wire.CheckpointWritten(T, 1, 9, asked=False, path="/x.h5", alone_s=1.5)
    assert desk.hear(write.node, periodic) == [CheckpointPublished(T, 9, 1.5)]
    assert desk.hear(NodeId("elsewhere"), periodic) == []
    assert desk.hear(write.node, done) == [CheckpointWritten(T, write.node, 9, "no space left")]


def test_progress_is_the_leaders_and_what_cannot_be_measured_is_left_out(forming: Desk) -> None:
    leader, other = members(forming)
    report = wire.Progress(
        T, 1, 3, 0, 96, math.nan, math.inf, -1.0, ledger=[(1, 0, 0, 3, 0, 96)], metrics={"b": math.nan, "a": 1.0}
    )
    assert forming.hear(other, report) == []
    [event] = forming.hear(leader, report)
    assert isinstance(event, Progress)
    assert (event.samples_per_s, event.stall_s, event.rescale_s) == (None, None, None)
    assert event.ledger == (LedgerRange(Generation(1), 0, 0, 3, 0, 96),)
    assert [name for name, _ in event.metrics] == ["a", "b"]


def test_progress_tells_how_long_the_loop_is_where_that_is_known(forming: Desk) -> None:
    leader, _ = members(forming)
    for metrics, total in (({"epochs": 3.0, "epoch_samples": 100.0}, 300.0), ({"iterations": 6.0}, 192.0), ({}, None)):
        [event] = forming.hear(leader, wire.Progress(T, 1, 3, 0, 96, None, None, None, metrics=metrics))
        assert isinstance(event, Progress)
        assert event.total_samples == total


def test_reports_that_are_known_are_left_out(forming: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Coordinator, "reports_of", lambda _core, trainer: 2 if trainer == T else 0)
    told = wire.Progress(T, 1, 3, 0, 96, reports=[(1, 0.1), (2, 0.2), (3, 0.3)])
    [event] = forming.hear(members(forming)[0], told)
    assert isinstance(event, Progress)
    assert event.reports == ((3, 0.3),)


def test_the_end_of_a_trainer_brings_its_last_metrics(forming: Desk) -> None:
    leader, other = members(forming)
    finished = wire.TrainerFinished(T, 1, 7, 70, {"accuracy": 0.9})
    assert forming.hear(other, finished) == []
    last, end = forming.hear(leader, finished)
    assert isinstance(last, Progress)
    assert last.metrics == (("accuracy", 0.9),)
    assert end == TrainerFinished(T, Generation(1), 7, 70)


def test_of_what_workers_load_only_what_is_new_or_different_is_news(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = Desk([*START, ("answer", 0)])
    starts = [p for p in desk.world.pending if isinstance(p, StartWorker)]
    a, b = starts[0].node, starts[1].node

    def loaded(node: NodeId, **files: str) -> list[Event]:
        return desk.hear(node, wire.CodeLoaded(T, {f"/{name}.py": v for name, v in files.items()}))

    desk.send(news := loaded(a, lib="1", util="1"))
    assert news == [CodeLoaded(T, a, (("/lib.py", "1"), ("/util.py", "1")))]
    assert loaded(b, lib="1", util="1") == []
    assert loaded(b, lib="1", more="1") == [CodeLoaded(T, b, (("/more.py", "1"),))]
    assert loaded(NodeId("elsewhere"), lib="2") == []
    monkeypatch.setattr(inbound, "FILES_MAX", 2)
    assert loaded(b, more="1") == [], "so many are not kept"
    desk.send(loaded(b, lib="2", more="1"))
    assert b not in desk.world.core.trainers[T].target
    assert loaded(b, lib="2") == [], "it is being stopped"


def test_a_script_is_checked_once_and_only_where_it_was_asked_for() -> None:
    desk = Desk([("join", 0), ("submit checked", 0)])
    while not isinstance(desk.world.pending[0], CheckScript):
        desk.world.complete(0, generous_plan)
    desk.catch_up()
    check = desk.waits(CheckScript)
    assert isinstance(check, CheckScript)
    found = wire.ScriptChecked(check.trainer, "differs", "its loss is a sum")
    assert desk.hear(NodeId("elsewhere"), found) == []
    events = desk.hear(check.node, found)
    assert events == [ScriptChecked(check.trainer, check.node, ProofState.DIFFERS, "its loss is a sum")]
    desk.send(events)
    assert desk.hear(check.node, found) == []
