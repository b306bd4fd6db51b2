"""How long a rank waits before it reports that."""

from __future__ import annotations

import pytest

from pilot.train.ranks import stall_timer
from pilot.train.ranks.stall_timer import StallTimer


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    clock = [100.0]
    monkeypatch.setattr(stall_timer.time, "monotonic", lambda: clock[0])
    return clock


def test_it_is_over_at_the_time_out_and_each_time_that_the_wait_has_doubled(now: list[float]) -> None:
    wait = StallTimer(4.0, 300.0)
    wait.begin(summing=True)
    over = []
    for _ in range(40):
        now[0] += 1.0
        over.append(wait.is_over())
    assert [second + 1 for second, said in enumerate(over) if said] == [4, 8, 16, 32]
    assert wait.left_s() == 24.0


def test_it_is_over_when_the_patience_is_at_its_end(now: list[float]) -> None:
    wait = StallTimer(4.0, 10.0)
    wait.begin(summing=True)
    over = []
    for _ in range(40):
        now[0] += 1.0
        over.append(wait.is_over())
    assert [second + 1 for second, said in enumerate(over) if said] == [4, 8, 10, 20, 40]


def test_each_wait_begins_anew_and_none_lasts_between_them(now: list[float]) -> None:
    wait = StallTimer(4.0, 300.0)
    wait.begin(summing=True)
    now[0] += 9.0
    assert (wait.waited_s(), wait.summing, wait.is_over()) == (9.0, True, True)
    wait.end()
    assert (wait.waited_s(), wait.summing) == (0.0, False)
    wait.begin(summing=False)
    assert (wait.left_s(), wait.is_over(), wait.summing) == (4.0, False, False)


def test_all_waits_add_up(now: list[float]) -> None:
    wait = StallTimer(4.0, 300.0)
    for seconds in (3.0, 4.0):  # it begins again within one when there is progress
        wait.begin(summing=True)
        now[0] += seconds
    wait.end()
    now[0] += 100.0
    wait.end()
    assert wait.ended_s == 7.0
