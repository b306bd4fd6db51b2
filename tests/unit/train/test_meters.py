"""What a rank measures of its time: rates and stalls, its own pace, and how long it waits before it reports that."""

from __future__ import annotations

import pytest

from pilot.protocol.wire import RankStepTimes, StepTimes
from pilot.train.ranks import meters
from pilot.train.ranks.meters import ASK_S, PERIOD_S, PERIOD_STEPS, PaceMeter, StallTimer, StepMeter
from pilot.train.state.shares import Shares


def test_the_rate_is_the_median_of_the_last_twenty_steps() -> None:
    meter = StepMeter()
    meter.regrouped()
    now_s = 0.0
    for seconds in [9.0] * 10 + [0.5] * 15 + [5.0] * 5:
        meter.stepped(now_s := now_s + seconds, 100)
    assert meter.samples_per_s() == 200.0


def test_no_rate_before_two_steps_of_a_generation() -> None:
    meter = StepMeter()
    meter.regrouped()
    meter.stepped(1.0, 10)
    assert meter.samples_per_s() is None
    meter.stepped(2.0, 10)
    meter.regrouped()
    assert meter.samples_per_s() is None


def test_the_stall_is_the_gap_less_the_median_step_before() -> None:
    meter = StepMeter()
    meter.regrouped()
    for now_s in (1.0, 2.0, 3.0):
        meter.stepped(now_s, 10)
        assert meter.stall_s is None, "it has just come"
    meter.regrouped()
    meter.stepped(6.5, 10)
    assert meter.stall_s == pytest.approx(2.5)
    meter.stepped(7.5, 10)
    assert meter.samples_per_s() == 10.0


def test_the_rate_of_rounds_is_known_after_the_first() -> None:
    meter = StepMeter()
    meter.regrouped()
    for now_s in (1.0, 2.0, 3.0):
        meter.stepped(now_s, 0)
    assert meter.samples_per_s() is None, "inner steps are each node's own"
    meter.held(400, 13.0)
    assert meter.samples_per_s() == pytest.approx(400 / 13)
    for _ in range(5):
        meter.held(400, 12.0)
    assert meter.samples_per_s() == pytest.approx(400 / 12), "the last five count"
    meter.regrouped()
    assert meter.samples_per_s() is None


def test_in_rounds_the_stall_is_that_between_two_inner_steps() -> None:
    meter = StepMeter()
    meter.regrouped()
    for now_s in (1.0, 2.0, 3.0, 4.0, 7.0, 8.0):  # an exchange takes 2 s
        meter.stepped(now_s, 0)
    meter.held(160, 4.8)
    meter.regrouped()
    meter.stepped(13.5, 0)
    assert meter.stall_s == pytest.approx(4.5), "the exchange and the state, not what is left of the round"


def steps(meter: PaceMeter, from_s: float, count: int, step_s: float, waits_s: float) -> list[RankStepTimes]:
    """Each step takes ``step_s``, ``waits_s`` of it waiting."""
    reports = []
    for number in range(count):
        begins_s = from_s + number * step_s
        meter.begins(begins_s, number * waits_s)
        reports.append(meter.applied(begins_s + step_s, (number + 1) * waits_s, 8))
    return [pace for pace in reports if pace is not None]


def test_a_pace_is_reported_at_a_low_rate_and_waits_do_not_count() -> None:
    reports = steps(PaceMeter("t", Shares()), 100.0, 40, 0.5, 0.3)
    assert [pace.trainer for pace in reports] == ["t", "t"]
    for one in reports:
        assert (one.times.steps, one.times.samples, one.times.wall_s) == (20, 160, pytest.approx(PERIOD_S))
        assert one.times.own_s == pytest.approx(20 * 0.2)


def test_long_steps_are_reported_when_there_are_a_few() -> None:
    (report, _) = steps(PaceMeter("t", Shares()), 0.0, 2 * PERIOD_STEPS, 60.0, 0.0)
    seconds = PERIOD_STEPS * 60.0
    assert report.times == StepTimes(PERIOD_STEPS, 8 * PERIOD_STEPS, seconds, seconds, equal_shares=True)


def test_a_step_counts_only_if_its_beginning_is_known() -> None:
    meter = PaceMeter("t", Shares())
    assert meter.applied(1000.0, 0.0, 8) is None, "the first step of a group, which warms up"
    meter.begins(1000.0, 0.0)
    meter.idle()
    assert meter.applied(2000.0, 0.0, 8) is None, "an evaluation was in between"
    (report,) = steps(meter, 2000.0, PERIOD_STEPS, 5.0, 1.0)
    assert (report.times.steps, report.times.own_s) == (PERIOD_STEPS, PERIOD_STEPS * 4.0)


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    clock = [100.0]
    monkeypatch.setattr(meters.time, "monotonic", lambda: clock[0])
    return clock


@pytest.mark.parametrize(("patience_s", "expected"), [(300.0, [2, 4, 8, 16, 32]), (10.0, [2, 4, 8, 10, 20, 40])])
def test_a_stall_is_reported_early_then_each_time_the_wait_has_doubled_and_when_the_patience_ends(
    now: list[float], patience_s: float, expected: list[int]
) -> None:
    wait = StallTimer(4.0, patience_s)
    wait.begin(summing=True)
    over = []
    for _ in range(40):
        now[0] += 1.0
        over.append(wait.is_over())
    assert [second + 1 for second, is_over in enumerate(over) if is_over] == expected
    assert wait.left_s() == 2 * expected[-1] - 40


def test_each_wait_begins_anew_and_none_lasts_between_them(now: list[float]) -> None:
    wait = StallTimer(4.0, 300.0)
    wait.begin(summing=True)
    now[0] += 9.0
    assert (wait.waited_s(), wait.summing, wait.is_over()) == (9.0, True, True)
    wait.end()
    assert (wait.waited_s(), wait.summing) == (0.0, False)
    wait.begin(summing=False)
    assert (wait.left_s(), wait.is_over(), wait.summing) == (ASK_S, False, False)


def test_all_waits_add_up(now: list[float]) -> None:
    wait = StallTimer(4.0, 300.0)
    for seconds in (3.0, 4.0):  # it begins again within one when there is progress
        wait.begin(summing=True)
        now[0] += seconds
    wait.end()
    now[0] += 100.0
    wait.end()
    assert wait.ended_s == 7.0
