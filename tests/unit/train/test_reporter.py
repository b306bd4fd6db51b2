"""The leader's messages with a trial's reports, some of which may get lost."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from pilot.protocol import wire
from pilot.submission.seldom import DiLoCo
from pilot.train import ranks
from pilot.train.data.sampler import StepShare
from pilot.train.node.membership import Membership
from pilot.train.ranks.reporter import PERIOD_S, REPEATED_REPORTS, REPORTS_AT_ONCE, Reporter
from pilot.train.ranks.script_end import script_failed
from pilot.train.state.progress import LineageRow, MetricReports
from pilot.train.state.stepper import LearningRate
from pilot.train.state.training import Training


def messages(count: int, *, finished: bool, reports: bool = True, failed: bool = False) -> list[wire.Progress]:
    """Those of a leader that makes ``count`` steps; of a trial, it ``reports`` after each."""
    model = nn.Linear(2, 1)
    training = Training(model, torch.optim.SGD(model.parameters(), lr=0.1), None, "step", LearningRate("none"))
    if reports:
        training.reports = MetricReports("accuracy")
    sent = list[wire.Message]()
    reporter, leader = Reporter("t", training, sent.append), Membership(1, 0, 1)
    reporter.started(leader, None)
    for step in range(count):
        training.reports.note(step, {"accuracy": step / 100})
        training.position.step = step + 1
        reporter.stepped(leader, 0, StepShare(0, 1, 1, ((0, 1),)), dict)
    if finished:
        reporter.finished(leader, dict)
    if failed:
        script_failed()
        script_failed()
    return [message for message in sent if isinstance(message, wire.Progress)]


def test_frequent_reports_share_messages() -> None:
    progress = messages(4 * REPORTS_AT_ONCE, finished=True)
    assert len(progress) < 2 * REPORTS_AT_ONCE
    assert {number for message in progress for number, _ in message.reports} == set(range(1, 4 * REPORTS_AT_ONCE + 1))


def test_the_newest_reports_are_repeated_with_the_next_ones() -> None:
    count = REPEATED_REPORTS + 10
    progress = messages(count, finished=False)
    assert len(progress) == count, "each report is sent at once"
    assert [number for number, _ in progress[2].reports] == [1, 2, 3]
    assert progress[-1].reports == [(n, (n - 1) / 100) for n in range(count - REPEATED_REPORTS, count + 1)]


def test_a_script_that_fails_after_quick_steps_has_reported_all_of_them_once() -> None:
    progress = messages(4, finished=False, reports=False, failed=True)
    assert [message.step for message in progress] == [1, 4], "the first at once, the others when it failed"
    assert [[row[2] for row in message.ledger] for message in progress] == [[0], [1, 2, 3]]
    assert [message.step for message in messages(4, finished=True, reports=False, failed=True)] == [1, 4]


@pytest.mark.parametrize("trained_s", [2.0, 0.5])
def test_rounds_and_their_inner_steps_are_reported_once_a_second_and_long_rounds_at_once(
    trained_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranks.reporter.time, "monotonic", lambda: 100.0)
    model, sent = nn.Linear(2, 1), list[wire.Message]()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    training = Training(model, optimizer, None, "step", LearningRate(None), sync=DiLoCo(2))
    reporter, leader = Reporter("t", training, sent.append), Membership(1, 0, 3)
    reporter.started(leader, None)
    for number in range(9):
        for _ in range(2):
            training.position.step += 1
            reporter.stepped(leader, 0, StepShare(0, 1, 1, ((0, 1),)), dict)
        row = LineageRow(1, 0, 2 * number, 2 * number + 2, 6 * number, 6 * number + 6)
        reporter.held(leader, [row], trained_s, dict)
    reporter.catch_up()
    progress = [message for message in sent if isinstance(message, wire.Progress)]
    held = [2 * number + 2 for number in range(9)] if trained_s > PERIOD_S else [18]
    assert [message.step for message in progress] == [1, *held]
    assert [message.samples_per_s for message in progress] == [None] + [6 / trained_s] * len(held)
    assert [row[4] for message in progress for row in message.ledger] == [6 * number for number in range(9)]
