"""What the leader says about a trial's reports, some of which may get lost on the way."""

from __future__ import annotations

from pilot.protocol import wire
from pilot.train.data.sampler import StepShare
from pilot.train.node.membership import Membership
from pilot.train.ranks.reporter import REPEATED_REPORTS, REPORTS_AT_ONCE, Reporter
from pilot.train.state.progress import MetricReports
from tests.unit.train.twin import training


def test_reports_that_come_thick_and_fast_share_messages() -> None:
    trained, told = training(), list[wire.Message]()
    trained.reports = MetricReports("accuracy")
    reporter, leader = Reporter("t", trained, told.append), Membership(1, 0, 1)
    reporter.started(leader, None)
    for step in range(4 * REPORTS_AT_ONCE):
        trained.reports.note(step, {"accuracy": step / 1000})
        reporter.stepped(leader, 0, StepShare(0, 1, 1, ((0, 1),)), dict)
    reporter.finished(leader, dict)
    progress = [message for message in told if isinstance(message, wire.Progress)]
    assert len(progress) < 2 * REPORTS_AT_ONCE
    assert {number for message in progress for number, _ in message.reports} == set(range(1, 4 * REPORTS_AT_ONCE + 1))


def test_the_newest_reports_are_told_again_with_the_next_ones() -> None:
    trained, told = training(), list[wire.Message]()
    trained.reports = MetricReports("accuracy")
    reporter, leader = Reporter("t", trained, told.append), Membership(1, 0, 1)
    reporter.started(leader, None)
    share = StepShare(0, 1, 1, ((0, 1),))
    for step in range(REPEATED_REPORTS + 10):
        trained.reports.note(step, {"accuracy": step / 100})
        reporter.stepped(leader, 0, share, dict)
    progress = [message for message in told if isinstance(message, wire.Progress)]
    assert len(progress) == REPEATED_REPORTS + 10, "each report is told at once"
    assert [number for number, _ in progress[2].reports] == [1, 2, 3]
    last = REPEATED_REPORTS + 10
    assert progress[-1].reports == [(n, (n - 1) / 100) for n in range(last - REPEATED_REPORTS, last + 1)]
