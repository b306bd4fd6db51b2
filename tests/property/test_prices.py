"""Plans by prices: feasible, never better than the optimum, within the bound, and close to it."""

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings

from benchmarks.planners import problem as large_problem
from pilot.core.curves.curve import Curve
from pilot.core.ids import TrainerId
from pilot.core.plan.problem import Candidate, Plan, PlanStatus, Problem
from pilot.planners import dp, milp, prices
from pilot.planners.choice import can_stay
from tests.property.test_planners import problems, problems_with_turns
from tests.unit.planners.problems import candidate, problem


def made(given: Problem) -> Plan:
    """The plan by prices, after checking what holds for all of them."""
    plan = prices.plan(given, "prices")
    if plan.status is PlanStatus.KEPT:
        assert can_stay(given)
        assert plan.as_dict() == given.kept()
    else:
        assert given.feasible(plan.as_dict())
    best = dp.plan(given).objective
    slack = 1e-9 * max(1.0, abs(best), given.t_fwd_s * max(c.value_at(c.max_nodes) for c in given.candidates))
    assert plan.objective <= best + slack
    assert plan.gap is not None
    assert plan.objective + plan.gap * max(1.0, abs(plan.objective)) >= best - slack
    return plan


@settings(max_examples=300, deadline=None)
@given(problems(most_trainers=8, most_nodes=40))
def test_plans_are_feasible_and_within_the_bound(problem: Problem) -> None:
    made(problem)


@settings(max_examples=100, deadline=None)
@given(problems_with_turns())
def test_those_run_that_must(problem: Problem) -> None:
    unpinned = replace(problem, candidates=tuple(replace(c, pin=None) for c in problem.candidates))
    counts = made(unpinned).as_dict()
    assert all(counts[c.trainer] >= c.min_nodes for c in unpinned.candidates if c.must_run)


def crowd(seed: int, trainers: int, nodes: int, most: int) -> Problem:
    """Trainers with minimums, sizes and curves of all shapes, some of them running."""
    choose, free, candidates = Random(seed), nodes, []
    for i in range(trainers):
        low = choose.choice((1, 1, 2, 4, 8))
        high = choose.randint(low, most)
        sizes = tuple(n for n in (1, 2, 4, 8, 16, 32, 64) if low <= n <= high) if choose.random() < 0.3 else ()
        points, rate, at = [], choose.uniform(1, 3), 1
        while at <= high:
            points.append((at, rate))
            at, rate = at * 2, rate * choose.uniform(0.9, 2.0)
        held = choose.choice(sizes) if sizes else choose.randint(low, high)
        held = held if held <= free and choose.random() < 0.6 else 0
        free -= held
        candidates.append(Candidate(TrainerId(f"t{i}"), held, low, high, Curve.of(points), 20.0, 10.0, sizes))
    return Problem(nodes, 120.0, tuple(candidates))


@pytest.mark.parametrize("seed", range(12))
def test_a_crowd_gets_nearly_the_best(seed: int) -> None:
    given = crowd(seed, trainers=60, nodes=50 + 60 * seed, most=40)
    assert made(given).objective >= 0.99 * dp.plan(given).objective


def huge(seed: int) -> Problem:
    """100,000 nodes, of which 1,000 are idle, and 500 trainers with up to 1,000 nodes each."""
    small, choose, candidates = large_problem(100, 500, seed), Random(seed), []
    for c in small.candidates:
        candidates.append(replace(c, current_nodes=choose.randint(1, 400), max_nodes=1000))
    return Problem(sum(c.current_nodes for c in candidates) + 1000, 120.0, tuple(candidates))


def test_where_the_exact_planner_is_too_slow_no_node_idles() -> None:
    given = huge(seed=1)
    assert given.nodes == pytest.approx(100_000, rel=0.05)
    plan = dp.plan(given, 10.0)
    assert plan.status is PlanStatus.INCUMBENT
    assert sum(plan.as_dict().values()) == given.nodes
    assert plan.gap is not None
    assert plan.gap < milp.NEGLIGIBLE_GAP
    assert milp.plan(given, 10.0).counts == plan.counts, "no solver is needed for so little"


def test_ending_nodes_are_left_alone_and_no_bound_is_claimed() -> None:
    given = replace(problem(4, candidate(high=8), candidate(high=8)), ending=2, ends_in_s=60.0)
    plan = prices.plan(given, "prices")
    assert sum(plan.as_dict().values()) == 4
    assert plan.ending == ()
    assert plan.gap is None
