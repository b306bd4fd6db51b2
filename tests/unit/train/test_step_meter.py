"""Rates and stalls."""

from __future__ import annotations

import pytest

from pilot.train.ranks.step_meter import StepMeter


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
    assert meter.stall_s is None
    meter.regrouped()
    meter.stepped(6.5, 10)
    assert meter.stall_s == pytest.approx(2.5)
    meter.stepped(7.5, 10)
    assert meter.samples_per_s() == 10.0


def test_a_newcomer_has_no_stall() -> None:
    meter = StepMeter()
    meter.regrouped()
    meter.stepped(100.0, 10)
    assert meter.stall_s is None
