"""Huawei's greedy allocator: the two examples of Fig 4, and its four scenarios."""

from __future__ import annotations

from pilot.core.curves.curve import Curve
from pilot.core.ids import TrainerId
from pilot.core.plan.problem import Candidate, Problem
from pilot.research.planners import greedy

SIZES = (1, 2, 4, 8, 16)


def shares(nodes: int, *jobs: tuple[str, int, float]) -> dict[str, int]:
    """The allocation for jobs of (name, current nodes, minutes trained), in submission order."""
    curve = Curve.proportional()
    candidates = (
        Candidate(TrainerId(name), now, 1, 16, curve, 0.0, 0.0, SIZES, trained_s=60.0 * minutes)
        for name, now, minutes in jobs
    )
    problem = Problem(nodes, 120.0, tuple(candidates))
    made = greedy.plan(problem)
    assert problem.feasible(made.as_dict())
    return {str(trainer): count for trainer, count in made.counts}


def test_figure_4_above_two_idle_nodes_go_to_the_one_that_has_trained_shortest() -> None:
    jobs = (("1", 2, 15), ("2", 2, 12), ("3", 2, 5), ("4", 2, 1))
    assert shares(10, *jobs) == {"1": 2, "2": 2, "3": 2, "4": 4}


def test_figure_4_below_the_one_that_has_trained_longest_gives_half_to_the_one_that_waits() -> None:
    jobs = (("5", 4, 15), ("6", 4, 12), ("7", 2, 5), ("8", 0, 0))
    assert shares(10, *jobs) == {"5": 2, "6": 4, "7": 2, "8": 2}


def test_idle_nodes_go_to_waiting_trainers_in_their_order() -> None:
    assert shares(22, ("a", 2, 9), ("b", 0, 0), ("c", 0, 0)) == {"a": 2, "b": 16, "c": 4}


def test_nothing_changes_where_none_idles_and_nobody_waits() -> None:
    assert shares(6, ("a", 4, 9), ("b", 2, 3)) == {"a": 4, "b": 2}


def test_each_that_waits_gets_half_of_somebodys_while_somebody_has_two() -> None:
    assert shares(4, ("a", 4, 9), ("b", 0, 0), ("c", 0, 0), ("d", 0, 0), ("e", 0, 0)) == {
        **dict.fromkeys("abcd", 1),
        "e": 0,
    }


def test_where_nodes_went_the_latest_lack_them() -> None:
    assert shares(5, ("a", 4, 9), ("b", 4, 3)) == {"a": 4, "b": 1}
