"""What a rank takes for its samples, without what it waits for."""

from __future__ import annotations

import pytest

from pilot.io.wire import Pace, RankPace
from pilot.train.ranks.pace_meter import PERIOD_S, PERIOD_STEPS, PaceMeter


def steps(meter: PaceMeter, from_s: float, count: int, step_s: float, waits_s: float) -> list[RankPace]:
    """Each step takes ``step_s``, ``waits_s`` of it waiting."""
    told = []
    for number in range(count):
        begins_s = from_s + number * step_s
        meter.begins(begins_s, number * waits_s)
        told.append(meter.applied(begins_s + step_s, (number + 1) * waits_s, 8))
    return [pace for pace in told if pace is not None]


def test_it_is_told_at_a_low_rate_and_waits_do_not_count() -> None:
    told = steps(PaceMeter("t"), 100.0, 40, 0.5, 0.3)
    assert [pace.trainer for pace in told] == ["t", "t"]
    for one in told:
        assert (one.pace.steps, one.pace.samples, one.pace.wall_s) == (20, 160, pytest.approx(PERIOD_S))
        assert one.pace.own_s == pytest.approx(20 * 0.2)


def test_long_steps_are_told_when_there_are_a_few() -> None:
    (told, _) = steps(PaceMeter("t"), 0.0, 2 * PERIOD_STEPS, 60.0, 0.0)
    assert told.pace == Pace(PERIOD_STEPS, 8 * PERIOD_STEPS, PERIOD_STEPS * 60.0, PERIOD_STEPS * 60.0)


def test_a_step_counts_only_if_its_beginning_is_known() -> None:
    meter = PaceMeter("t")
    assert meter.applied(1000.0, 0.0, 8) is None, "the first step of a group, which warms up"
    meter.begins(1000.0, 0.0)
    meter.idle()
    assert meter.applied(2000.0, 0.0, 8) is None, "an evaluation was in between"
    (told,) = steps(meter, 2000.0, PERIOD_STEPS, 5.0, 1.0)
    assert (told.pace.steps, told.pace.own_s) == (PERIOD_STEPS, PERIOD_STEPS * 4.0)
