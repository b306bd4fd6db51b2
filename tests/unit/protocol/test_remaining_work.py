"""How far a trainer has to go: every way in which it can be known, and those in which it cannot."""

from __future__ import annotations

import math

import pytest

from pilot.protocol.remaining_work import Goal

KNOWN = {"epochs": 4.0, "epoch_samples": 100.0, "iterations": 50.0}


def test_invalid_lengths_are_unknown() -> None:
    assert Goal.of(KNOWN) == Goal(4, 50, 100)
    assert Goal.of({"epochs": 1.0}) == Goal(1, None, None)
    for nonsense in (0.0, -3.0, 2.0**60, math.inf, math.nan):
        assert Goal.of(dict.fromkeys(KNOWN, nonsense)) == Goal(None, None, None)


@pytest.mark.parametrize(
    ("goal", "epoch", "step", "samples", "left"),
    [
        (Goal(4, None, 100), 1, 9, 150, 250),
        (Goal(4, None, 100), 0, 0, 0, 400),
        (Goal(4, None, None), 2, 9, 200, 200),  # a stream: an epoch is as long as the previous ones
        (Goal(4, None, None), 1, 9, 150, 450),
        (Goal(4, None, 100), 4, 40, 430, 0),  # a remainder that fills no step was repeated
        (Goal(4, 50, 100), 1, 10, 150, 600),  # iterations count if both are known
        (Goal(None, 50, None), 0, 1, 7, 343),
    ],
)
def test_the_remaining_time_at_two_samples_per_second(
    goal: Goal, epoch: int, step: int, samples: int, left: float
) -> None:
    assert goal.left_s(epoch, step, samples, 2.0) == left / 2


def test_an_unknown_remaining_time() -> None:
    assert Goal(4, None, None).left_s(0, 9, 150, 2.0) is None
    assert Goal(None, 50, None).left_s(0, 0, 0, 2.0) is None
    assert Goal(None, None, 100).left_s(2, 9, 200, 2.0) is None
    assert [Goal(4, None, 100).left_s(1, 9, 150, rate) for rate in (None, 0.0)] == [None, None]


def test_the_largest_exact_count_is_one() -> None:
    assert Goal.of({"epochs": 2.0**53}).epochs == 2**53
