"""FLEET's Algorithm 1 by hand, and the properties of every flotilla."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings

from pilot.core.curves.curve import Curve
from pilot.core.plan.problem import Candidate, PlanStatus, Problem
from pilot.research.planners import flotilla
from tests.property.test_planners import problems
from tests.unit.planners.problems import candidate, problem


def rate(per_node_s: float) -> Candidate:
    return candidate(curve=Curve.proportional(per_node_s), high=99)


def bent(*per_s: float, low: int = 1) -> Candidate:
    return candidate(curve=Curve.of(enumerate((0.0, *per_s))), low=low, high=len(per_s))


@pytest.mark.parametrize(
    ("nodes", "candidates", "expected"),
    [
        # b sets the pace of 100; a and c reach it on 2 and 4; the last node goes to the first of equals
        (8, [rate(50), rate(100), rate(25)], [3, 1, 4]),
        # d comes closest to 100 with 3 (99), then c with 2 (90); a, at 40 per node, is far from it with the one that is
        # left
        (7, [rate(40), rate(100), rate(45), rate(33)], [1, 1, 2, 3]),
        # only the fastest fits
        (1, [rate(1), rate(3), rate(3)], [0, 1, 0]),
        # all are equal: one node each, then one more for the first
        (4, [rate(5), rate(5), rate(5)], [2, 1, 1]),
        # 2 nodes or more: it sets the pace of 120 by its smallest size; c gets what is left, and grows to its largest
        (9, [rate(30), bent(70, 120, 150, low=2), bent(60, 80, 90)], [4, 2, 3]),
        # more nodes than anybody can use
        (50, [bent(10, 20), bent(5, 10, 15)], [2, 3]),
        # the slowest, b, does not get faster; a does
        (4, [bent(10, 19, 27), bent(9, 9, 9)], [3, 1]),
        (0, [rate(1)], [0]),
        (3, [bent(1, 2, 3, 4, 5, low=4)], [0]),
        (3, [], []),
    ],
)
def test_by_hand(nodes: int, candidates: list[Candidate], expected: list[int]) -> None:
    made = flotilla.plan(given_problem := problem(nodes, *candidates))
    assert [n for _, n in made.counts] == expected
    assert (made.status, made.gap, made.planner) == (PlanStatus.INCUMBENT, None, "flotilla")
    assert made.objective == given_problem.objective(made.as_dict())


def sizes_of(c: Candidate) -> list[int]:
    return [count for count in range(1, c.max_nodes + 1) if c.allows(count)]


@settings(deadline=None)
@given(problems(most_trainers=6))
def test_invariants_of_every_flotilla(given_problem: Problem) -> None:
    counts = flotilla.plan(given_problem).as_dict()
    assert given_problem.feasible(counts)
    left = given_problem.nodes - sum(counts.values())
    sizes = {c.trainer: sizes_of(c) for c in given_problem.candidates}
    able = [c for c in given_problem.candidates if sizes[c.trainer][:1] and sizes[c.trainer][0] <= given_problem.nodes]
    assert bool(able) == any(counts.values())
    if able:
        pace = max(c.value_at(sizes[c.trainer][0]) for c in able)
        assert any(counts[c.trainer] for c in able if c.value_at(sizes[c.trainer][0]) == pace)
    for c in able:
        count = counts[c.trainer]
        assert count or sizes[c.trainer][0] > left  # those that fit join
        after = next((size for size in sizes[c.trainer] if size > count > 0), None)
        if after is not None and after - count <= left:
            assert c.value_at(after) <= c.value_at(count)  # no node is idle that would make a member faster


@settings(deadline=None)
@given(problems(most_trainers=6))
def test_with_another_node_the_pace_of_the_slowest_does_not_fall_where_curves_rise(given_problem: Problem) -> None:
    rising = tuple(
        Candidate(c.trainer, 0, 1, 9, Curve.proportional(1.0 + place), 0.0, 0.0)
        for place, c in enumerate(given_problem.candidates)
    )
    nodes = 9 * len(rising)
    paces = []
    for more in range(nodes - len(rising), nodes + 1):
        counts = flotilla.plan(Problem(more, 1.0, rising)).as_dict()
        paces.append(min(c.value_at(counts[c.trainer]) for c in rising))
    assert all(a <= b for a, b in pairwise(paces))
