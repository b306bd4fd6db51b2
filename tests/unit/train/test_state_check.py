"""What costs time is repeated so rarely that it takes a small share of the time."""

from __future__ import annotations

import pytest

from pilot.train.state import state_check
from pilot.train.state.state_check import Spaced


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def monotonic(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(state_check, "time", clock)
    return clock


def do(one: Spaced, clock: Clock, took_s: float) -> None:
    with one.doing():
        clock.now_s += took_s


def test_it_takes_one_of_so_many_parts_of_the_time(clock: Clock) -> None:
    one = Spaced(100)
    took_s = 0.0
    for _ in range(10_000):
        clock.now_s += 0.01
        if one.is_due():
            do(one, clock, 0.02)
            took_s += 0.02
    assert took_s == pytest.approx((clock.now_s - 1000) / 100, rel=0.1)


def test_the_times_of_two_in_a_row_add_up(clock: Clock) -> None:
    one = Spaced(100)
    do(one, clock, 0.02)
    do(one, clock, 0.04)
    clock.now_s += 5.9
    assert not one.is_due()
    clock.now_s += 0.2
    assert one.is_due()


def test_the_first_times_are_always_due(clock: Clock) -> None:
    one = Spaced(100, first=3)
    for _ in range(3):
        assert one.is_due()
        do(one, clock, 1.0)
    assert not one.is_due()
