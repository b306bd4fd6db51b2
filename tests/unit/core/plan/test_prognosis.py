"""When waiting trainers are expected to start: a pool is played forward."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from pilot.core.curves.curve import Curve
from pilot.core.ids import TrainerId
from pilot.core.plan.problem import Candidate
from pilot.core.plan.prognosis import LATE, Expected, Job, NodesSeen, Prognosis, divided, forecast

FLAT = Curve.of([(1, 1.0), (64, 1.001)])
"""More nodes hardly help, so that a trainer has one."""


def job(name: str, left_s: float, nodes: int = 0, least: int = 1, curve: Curve = FLAT, most: int = 1) -> Job:
    candidate = Candidate(TrainerId(name), nodes, least, max(least, most), curve, 20.0, 10.0)
    return Job(candidate, curve, left_s, left_s == math.inf)


def pool(nodes: float, most: int = 9, calm_s: float = math.inf) -> Expected:
    return Expected(lambda _: nodes, most, 120.0, calm_s)


def starts(where: Expected, *jobs: Job) -> list[float | None]:
    """As played, without what makes forecasts late."""
    return [
        s if s is None else s / LATE if s > 120.0 else s
        for s in (p.starts_in_s for p in forecast(jobs, where).values())
    ]


def test_a_trainer_starts_when_those_before_it_have_ended() -> None:
    long, short = job("long", 6 * 3600.0, 1), job("short", 30.0, 1)
    assert forecast([job("x", math.inf, 1), job("a", 60.0)], pool(2)) == {"a": Prognosis(1, 1, 0.0)}
    assert starts(pool(1), long, job("a", 60.0), job("b", 60.0)) == [21600.0, 21660.0]
    assert starts(pool(2), long, short, job("a", 60.0), job("b", 5.0)) == [120.0, 120.0]


def test_one_that_needs_fewer_nodes_may_start_before_an_earlier_one() -> None:
    ends = [job("x", 100.0, 2, 2), job("y", 200.0, 2, 2)]
    assert starts(pool(4), *ends, job("wide", 1.0, least=4), job("narrow", 500.0, least=2)) == [
        pytest.approx(600.0, abs=0.1),
        120.0,
    ]


def test_only_so_many_run_at_once() -> None:
    assert starts(pool(6, most=1), job("x", 100.0, 1), job("a", 50.0), job("b", 1.0)) == [120.0, 150.0]


@pytest.mark.parametrize(
    ("running", "least", "endless"),
    [([job("x", math.inf, 1)], 1, "x"), ([job("x", 5.0, 1)], 2, ""), ([job("x", math.inf, 1)], 2, ""), ([], 2, "")],
)
def test_what_cannot_be_foretold_says_why_unless_it_is_for_lack_of_nodes(
    running: list[Job], least: int, endless: str
) -> None:
    found = forecast([*running, job("a", 60.0, least=least)], pool(1))
    assert found == {"a": Prognosis(1, 1, None, endless)}


def test_one_behind_a_trainer_of_unknown_length_is_not_foretold() -> None:
    found = forecast([job("x", 30.0, 1), job("new", math.inf), job("b", 60.0)], pool(1))
    assert found == {"new": Prognosis(1, 2, 120.0, "new"), "b": Prognosis(2, 2, None, "new")}


def test_a_plan_that_is_worth_a_rescale_lets_a_trainer_start_at_once() -> None:
    wide = job("x", 1e6, 8, curve=Curve.of([(1, 1.0), (8, 2.0)]), most=8)
    assert starts(pool(8), wide, job("a", 60.0)) == [0.0]
    scales = job("x", 8e4, 8, curve=Curve.proportional(), most=8)
    assert starts(pool(8), scales, job("a", 60.0)) == [10_000.0], "it would lose more by it"
    assert starts(pool(8, calm_s=500.0), scales, job("a", 60.0, curve=Curve.proportional())) == [10_000.0]
    assert starts(pool(8, calm_s=500.0), wide, job("a", 60.0)) == [0.0]


def test_when_nodes_come_and_go_more_changes_hands() -> None:
    bends = Curve.of([(1, 1.0), (8, 7.0)])
    wide = job("x", 8e4, 8, curve=bends, most=8)
    assert starts(pool(8, calm_s=500.0), wide, job("a", 60.0)) == [pytest.approx(500.0)]


def test_what_depends_on_a_guess_is_rough() -> None:
    guessed = Job(job("x", 30.0, 1).candidate, FLAT, 30.0, rough=True)
    assert forecast([guessed, job("a", 60.0)], pool(1))[TrainerId("a")].rough


def test_nodes_go_to_whoever_gains_most_by_them() -> None:
    steep, flat = Curve.of([(1, 1.0), (4, 4.0)]), Curve.of([(1, 1.0), (4, 1.5)])
    jobs = [job("flat", 1.0, curve=flat, most=4), job("steep", 1.0, curve=steep, most=4)]
    assert divided(jobs, {}, 5, 120.0) == {"flat": 1, "steep": 4}
    assert divided(jobs, {TrainerId("flat"): 4}, 5, 120.0) == {"flat": 4, "steep": 1}


def test_the_turn_of_a_trainer_comes_at_the_latest() -> None:
    a = Job(job("a", 60.0).candidate, FLAT, 60.0, turn_in_s=100.0)
    assert starts(pool(1), job("x", math.inf, 1), a) == [100.0]
    assert starts(pool(1), job("x", 1e9, 1), a) == [100.0]
    assert [one.turn for one in forecast([job("x", math.inf, 1), a], pool(1)).values()] == [True]
    later = replace(a, turn_in_s=1000.0)
    assert [one.turn for one in forecast([job("x", 50.0, 1), later], pool(1)).values()] == [False]


def test_a_long_queue_is_played_in_part() -> None:
    found = starts(pool(1, most=1), job("x", 1e3, 1), *(job(f"t{n}", 1e3) for n in range(2000)))
    assert found == pytest.approx([1e3 * n for n in range(1, 2001)], rel=0.01)


def test_nodes_go_from_those_of_now_to_the_mean() -> None:
    seen = NodesSeen()
    seen.note(0.0, 10)
    seen.note(3600.0, 0)
    seen.note(9 * 3600.0, 30)
    seen.note(10 * 3600.0, 4)
    nodes = seen.expected(4)
    assert [nodes(0.0), nodes(math.inf)] == [4.0, pytest.approx(20.0, abs=0.5)], "while it had any"


def test_a_forecast_is_rather_late_and_a_plan_takes_its_time() -> None:
    jobs = [job("x", 200.0, 1), job("a", 60.0), job("b", 60.0)]
    assert [one.starts_in_s for one in forecast(jobs, pool(1)).values()] == [200.0 * LATE, 260.0 * LATE]
    assert [one.starts_in_s for one in forecast([job("x", 5.0, 1), job("a", 1.0)], pool(1)).values()] == [120.0]
    assert [one.starts_in_s for one in forecast(jobs, pool(3)).values()] == [0.0, 0.0]
    assert Prognosis(1, 1, None).at_s(5.0) is None
    assert Prognosis(1, 1, 2.0).at_s(5.0) == 7.0
