"""When the core is told how fast the members of a group compute."""

from __future__ import annotations

import pytest

from pilot.core.events import SpeedsMeasured
from pilot.core.ids import Generation
from pilot.core.trainer.trainer import Group
from pilot.protocol.fields import StepTimes
from pilot.service.agents.speeds import EVERY_S, SpeedMeter
from tests.unit.service.stage import A, B, C, G, Stage, T

TEN = StepTimes(10, 1000, 4.0, 10.0)
FEW = StepTimes(3, 100, 2.0, 10.0)
EQUAL = StepTimes(10, 1000, 4.0, 10.0, equal_shares=True)


@pytest.fixture
def stage() -> Stage:
    stage = Stage()
    stage.trains(A, B)
    return stage


def test_all_members_are_told_together_with_what_they_did_since(stage: Stage) -> None:
    meter = SpeedMeter(stage.core)
    assert meter.measured(0.0, A, T, TEN) == []
    assert meter.measured(5.0, A, T, FEW) == []
    assert meter.measured(6.0, B, T, FEW) == [SpeedsMeasured(T, G, ((A, 1100 / 6.0), (B, 50.0)))]
    assert meter.measured(10.0, A, T, TEN) == meter.measured(10.0, B, T, TEN) == []
    later_s = 6.0 + EVERY_S
    assert meter.measured(later_s, B, T, TEN) == [SpeedsMeasured(T, G, ((A, 250.0), (B, 250.0)))]


def test_it_is_told_whether_shares_are_equal_however_fast_nodes_are(stage: Stage) -> None:
    meter = SpeedMeter(stage.core)
    meter.measured(0.0, A, T, EQUAL)
    assert meter.measured(0.0, B, T, EQUAL) == [SpeedsMeasured(T, G, ((A, 250.0), (B, 250.0)), equal_shares=True)]


def test_others_and_what_cannot_be_are_not_told(stage: Stage) -> None:
    meter = SpeedMeter(stage.core)
    assert meter.measured(0.0, C, T, TEN) == meter.measured(0.0, A, "nobody", TEN) == []
    assert meter.measured(0.0, A, T, StepTimes(3, 5, 0.0, 1.0)) == []
    assert meter.measured(0.0, B, T, TEN) == []


def test_a_new_generation_begins_anew_but_is_told_no_sooner(stage: Stage) -> None:
    meter = SpeedMeter(stage.core)
    meter.measured(0.0, A, T, TEN)
    assert meter.measured(0.0, B, T, TEN)
    meter.measured(1.0, A, T, FEW)
    trainer = stage.core.trainers[T]
    trainer.group = Group(Generation(2), (A, B))
    assert meter.measured(EVERY_S, B, T, TEN) == []
    assert meter.measured(EVERY_S, A, T, TEN) == [SpeedsMeasured(T, Generation(2), ((B, 250.0), (A, 250.0)))]
