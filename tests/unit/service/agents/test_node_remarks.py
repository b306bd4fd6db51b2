"""Remarks about nodes: library versions that differ from the majority's, and nodes for which the others wait."""

from __future__ import annotations

import pytest

from pilot.core.ids import NodeId, TrainerId
from pilot.protocol.fields import StepTimes
from pilot.service.agents.node_remarks import LINES_MAX, VersionsSeen, differences, sentence, slow, total

A, B, C, D, E = map(NodeId, "abcde")
NEW = {"Python": "3.12.3", "torch": "2.9.1", "mpich": "5.0.2"}
OLD = {**NEW, "torch": "2.8.0"}
DIFFER = "library versions differ from the pool's majority"
EFFECT = "sums may differ in their last digits, and a state that one version saves may not load in another"


@pytest.mark.parametrize(
    ("installed", "lines"),
    [
        ({}, []),
        ({A: NEW, B: dict(reversed(NEW.items()))}, []),
        ({A: OLD, B: NEW, C: NEW}, [f"a: {DIFFER}: torch 2.8.0 instead of 2.9.1; {EFFECT}"]),
        ({A: OLD, B: NEW, C: NEW, D: NEW, E: OLD}, [f"a, e: {DIFFER}: torch 2.8.0 instead of 2.9.1; {EFFECT}"]),
        (
            {A: NEW, B: {"Python": "3.11.2", "torch": "2.9.1"}},  # of two, the later one
            [f"b: {DIFFER}: Python 3.11.2 instead of 3.12.3, mpich none instead of 5.0.2; {EFFECT}"],
        ),
    ],
)
def test_nodes_whose_versions_differ(installed: dict[NodeId, dict[str, str]], lines: list[str]) -> None:
    assert differences(installed) == lines


def test_many_differences_are_summed_up() -> None:
    lines = differences({NodeId(f"n{i}"): {"torch": str(i // 2 if i < 40 else 99)} for i in range(100)})
    assert len(lines) == LINES_MAX + 1
    assert lines[-1] == f"n6, n7, n8, n9 and 30 more: {DIFFER}, too"


def test_only_versions_that_are_new_beside_others_are_logged() -> None:
    seen = VersionsSeen()
    assert [seen.is_another(v) for v in (NEW, NEW, OLD, OLD, NEW)] == [False, False, True, False, False]
    assert sum(seen.is_another({"torch": str(number)}) for number in range(100)) == LINES_MAX - 1


def took(own_s: float, steps: int = 100, samples: int = 1000, wall_s: float = 80.0) -> StepTimes:
    return StepTimes(steps, samples, own_s, wall_s)


@pytest.mark.parametrize(
    ("times", "found"),
    [
        ({A: took(20.0), B: took(22.0), C: took(40.0), D: took(18.0)}, [(C, 2.0)]),
        ({A: took(20.0), B: took(22.0), C: took(39.0), D: took(18.0)}, []),
        ({A: took(10.0), B: took(60.0), C: took(10.0), D: took(80.0)}, [(D, 8.0), (B, 6.0)]),
        ({A: took(10.0), B: took(41.0)}, [(B, 4.1)]),
        ({A: took(40.0, samples=2000), B: took(20.0), C: took(20.0)}, []),  # it is per sample
        ({A: took(1.0), B: took(8.0)}, []),  # the others wait for a small part of the time
        ({A: took(1.0), B: took(9.0)}, [(B, 9.0)]),
        ({}, []),
        ({A: took(80.0)}, []),
    ],
)
def test_a_node_is_slow_that_takes_twice_as_long_as_the_others(
    times: dict[NodeId, StepTimes], found: list[tuple[NodeId, float]]
) -> None:
    assert slow(times) == found


@pytest.mark.parametrize("short", [took(70.0, steps=19), took(50.0, wall_s=59.0), took(70.0, samples=0)])
def test_it_takes_some_steps_and_a_minute(short: StepTimes) -> None:
    assert slow({A: took(10.0), B: took(10.0), C: short}) == []
    assert slow({A: took(10.0), B: took(70.0), C: short}) == [], "one other is not enough in a group of three"
    assert slow({A: took(10.0), B: took(10.0), C: took(70.0), D: short})[0][0] == C


def test_times_add_up() -> None:
    assert total([took(1.0), took(2.0)]) == StepTimes(200, 2000, 3.0, 160.0)
    assert total([StepTimes(1, 2, 1.0, 1.0, True, 0.5), took(2.0)]).limit_loss == 0.0
    assert total([took(2.0), StepTimes(1, 2, 1.0, 1.0, True, 0.5)]) == StepTimes(101, 1002, 3.0, 81.0, True, 0.5)
    assert total([]) == StepTimes(0, 0, 0.0, 0.0)


@pytest.mark.parametrize(
    ("size", "job", "end"),
    [
        (3, "17", "the other nodes of t1, which wait for it; to leave it out, end its job 17"),
        (2, "", "the other node of t1, which waits for it"),
    ],
)
def test_a_slow_node_is_one_line(size: int, job: str, end: str) -> None:
    line = sentence(A, 4.123, TrainerId("t1"), size, job)
    assert line == f"a takes 4.1 times as long per sample as {end}"
