"""Which nodes of a group count as slow."""

from __future__ import annotations

import pytest

from pilot.core.ids import NodeId, TrainerId
from pilot.protocol.wire import StepTimes
from pilot.service.agents.slow_nodes import over, sentence, slow, tells

A, B, C, D = map(NodeId, "abcd")


def pace(own_s: float, steps: int = 100, samples: int = 1000, wall_s: float = 80.0) -> StepTimes:
    return StepTimes(steps, samples, own_s, wall_s)


def test_a_node_that_takes_twice_as_long_as_the_median_of_the_others_is_slow() -> None:
    assert slow({A: pace(20.0), B: pace(22.0), C: pace(40.0), D: pace(18.0)}) == [(C, 2.0)]
    assert slow({A: pace(20.0), B: pace(22.0), C: pace(39.0), D: pace(18.0)}) == []
    assert slow({A: pace(10.0), B: pace(60.0), C: pace(10.0), D: pace(80.0)}) == [(D, 8.0), (B, 6.0)]


def test_of_two_nodes_it_is_the_slower_one() -> None:
    assert slow({A: pace(10.0), B: pace(41.0)}) == [(B, 4.1)]


def test_it_is_per_sample() -> None:
    assert slow({A: pace(40.0, samples=2000), B: pace(20.0), C: pace(20.0)}) == []


@pytest.mark.parametrize("short", [pace(70.0, steps=19), pace(50.0, wall_s=59.0), pace(70.0, samples=0)])
def test_it_takes_some_steps_and_a_minute(short: StepTimes) -> None:
    assert slow({A: pace(10.0), B: pace(10.0), C: short}) == []
    assert slow({A: pace(10.0), B: pace(70.0), C: short}) == [], "one other is not enough in a group of three"
    assert slow({A: pace(10.0), B: pace(10.0), C: pace(70.0), D: short})[0][0] == C


def test_nobody_waits_for_a_node_whose_time_is_a_small_part() -> None:
    assert slow({A: pace(1.0), B: pace(8.0)}) == []
    assert slow({A: pace(1.0), B: pace(9.0)}) == [(B, 9.0)]


def test_a_node_alone_is_not_slow() -> None:
    assert slow({}) == slow({A: pace(80.0)}) == []


def test_paces_add_up() -> None:
    assert over([pace(1.0), pace(2.0)]) == StepTimes(200, 2000, 3.0, 160.0)
    assert not tells(over([]))


def test_it_is_told_in_one_line() -> None:
    told = sentence(A, 4.123, TrainerId("t1"), 3, "17")
    waits = "a takes 4.1 times as long per sample as the other nodes of t1, which wait for it"
    assert told == f"{waits}; to leave it out, end its job 17"
    told = sentence(A, 2.0, TrainerId("t1"), 2, "")
    assert told == "a takes 2.0 times as long per sample as the other node of t1, which waits for it"
