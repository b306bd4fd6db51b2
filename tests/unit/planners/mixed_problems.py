"""Small random problems with several types of nodes, and their optimum by trying all nodes that trainers may have."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Iterator
from dataclasses import replace
from random import Random

from pilot.core.curves.curve import Curve
from pilot.core.plan.problem import ByType, Candidate, Plan, PlanStatus, Problem, place
from pilot.planners import milp, prices
from pilot.planners.choice import plan_of
from tests.unit.planners.problems import NAMES

TYPES = ("a100", "h100", "a40")


def mixed_candidate(
    held: ByType, speeds: tuple[float, ...], low: int = 1, high: int = 8, curve: Curve | None = None
) -> Candidate:
    costs = 20.0, 10.0
    return Candidate(NAMES[0], sum(held), low, high, curve or Curve.proportional(), *costs, held=held, speeds=speeds)


def mixed_problem(nodes: ByType, *candidates: Candidate, t_fwd_s: float = 120.0) -> Problem:
    """A problem whose candidates are called a, b, … in this order."""
    named = tuple(replace(c, trainer=name) for name, c in zip(NAMES, candidates, strict=False))
    return Problem(sum(nodes), t_fwd_s, named, types=TYPES[: len(nodes)], types_nodes=nodes)


def random_problem(seed: int) -> Problem:
    """Two or three types and two to four trainers, with curves of any shape, sizes, types that some cannot use, equal
    shares, pins and trainers that must run (all of these fit together), some of them alike, or parked."""
    choose = Random(seed)
    there = tuple(choose.randint(0, 4) for _ in range(choose.randint(2, 3)))
    curves, free, candidates = [_curve(choose), _curve(choose)], there, list[Candidate]()
    for _ in range(choose.randint(2, 4)):
        c = _candidate(choose, choose.choice(curves), free)
        if candidates and choose.random() < 0.2:
            c = replace(candidates[0], current_nodes=0, held=(0,) * len(there))
        free = _less(free, c.held)
        candidates.append(c)
    candidates = _with_musts(choose, candidates, there)
    return mixed_problem(there, *candidates, t_fwd_s=choose.choice((1.0, 30.0, 120.0)))


def _curve(choose: Random) -> Curve:
    points, nodes = [], 0.0
    for _ in range(choose.randint(1, 4)):
        nodes += choose.choice((0.5, 1.0, 1.0, 1.5, 2.0, 3.0))
        points.append((nodes, choose.choice((0.3, 0.5, 1.0, 1.2, 2.0, 3.0, 3.5, 5.0))))
    return Curve.of(points)


def _candidate(choose: Random, curve: Curve, free: ByType) -> Candidate:
    low = choose.choice((1, 1, 2, 3))
    high, one_type = choose.randint(low, 6), choose.random() < 0.25
    speeds = tuple(choose.choice((0.0, 0.25, 0.5, 1.0, 1.3, 2.0)) for _ in free)
    held = [0] * len(free)
    for k, there in enumerate(free if choose.random() < 0.6 else ()):
        if not (one_type and sum(held)):
            held[k] = choose.randint(0, min(there, high - sum(held)))
    some = choose.sample(range(low, high + 1), choose.randint(1, high - low + 1))
    sizes = tuple(sorted(some)) if choose.random() < 0.3 else ()
    costs = choose.choice((0.0, 5.0, 12.0, 60.0)), choose.choice((0.0, 5.0, 20.0))
    made = Candidate(NAMES[0], sum(held), low, high, curve, *costs, sizes)
    return replace(made, held=tuple(held), speeds=speeds, one_type=one_type)


def _with_musts(choose: Random, candidates: list[Candidate], there: ByType) -> list[Candidate]:
    found, all_nodes = [], there
    for c in candidates:
        use = [nodes for nodes in every_choice(c, there) if any(nodes)]
        if use and choose.random() < 0.3:
            nodes = choose.choice(use)
            there = _less(there, nodes)
            c = replace(c, pin=sum(nodes)) if choose.random() < 0.5 else replace(c, must_run=True)
        found.append(c)
    fit = place([c for c in found if c.pin or c.must_run], all_nodes)
    return found if fit is not None else candidates


def _less(nodes: ByType, taken: ByType) -> ByType:
    return tuple(n - t for n, t in zip(nodes, taken, strict=True))


def every_choice(candidate: Candidate, there: ByType) -> Iterator[ByType]:
    """All nodes that one trainer may have of these."""
    return filter(candidate.allows_on, itertools.product(*(range(nodes + 1) for nodes in there)))


def best_mixed(problem: Problem) -> float:
    """The optimum: the best value for each number of nodes of each type that are used, trainer by trainer."""
    best = {(0,) * len(problem.types): 0.0}
    for c in problem.candidates:
        gains = [(nodes, c.gain_on(nodes, problem.t_fwd_s)) for nodes in every_choice(c, problem.types_nodes)]
        after = dict[ByType, float]()
        for (used, value), (nodes, gain) in itertools.product(best.items(), gains):
            left = _less(_less(problem.types_nodes, used), nodes)
            if min(left) >= 0:
                now = tuple(u + n for u, n in zip(used, nodes, strict=True))
                after[now] = max(after.get(now, value + gain), value + gain)
        best = after
    return max(best.values())


SOLVERS_TOLERANCE = 1e-6
"""A share of the largest value: solvers end when no variable seems to be worth more than about 1e-7."""


def disagreement(problem: Problem, solver: str, from_prices: bool) -> float:
    """How far the value of a solver's plan is from the optimum, as a share of the largest value; infinite if it did not
    prove it."""
    start = prices.plan(problem, "dp") if from_prices else None
    outcome = milp.solve(problem, time.monotonic() + 60.0, solver, milp.MIXED, start)
    if not outcome.proved:
        return math.inf
    return missed(problem, plan_of(problem, outcome.counts or (), PlanStatus.OPTIMAL, 0.0, solver))


def missed(problem: Problem, plan: Plan) -> float:
    """How far a plan's value is from the optimum, as a share of the largest value."""
    largest = max(problem.t_fwd_s * max(c.value.per_s) for c in problem.candidates)
    return abs(problem.objective_on(dict(plan.by_type)) - best_mixed(problem)) / max(1.0, largest)
