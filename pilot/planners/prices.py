"""Plans by a price per node (Lagrange), for problems on which an exact planner takes too long.

If every node costs the same price, each trainer decides alone: it takes the count that gains most beyond what its nodes
cost. That is always a corner of the concave hull of its gains; the higher the price, the fewer nodes all take. So no
price is searched for: the steps from one corner to the next are sorted by what they gain per node, and taken while
nodes are left. The gain per node of the first step that does not fit is the price. With the part of it that would fit,
the gains are the bound of the Lagrangian relaxation: no plan is worth more.

Where corners are far apart (a minimum, few allowed sizes) the last nodes may fit nobody's next step. So the trainers
whose steps are worth nearly the price are planned for again, exactly, with all nodes that the others leave.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from operator import attrgetter

import numpy as np
from numpy.typing import NDArray

from pilot.core.curves.curve import Curve
from pilot.core.plan.problem import Candidate, Plan, PlanStatus, Problem
from pilot.planners.choice import best_known, plan_of

EXACT_WORK = 3e7
"""The most additions of the exact planner for the trainers near the price: some 50 ms."""

Exact = Callable[[Problem], Plan | None]
"""An exact planner."""


@dataclass(frozen=True, slots=True)
class Step:
    """The candidate at ``place`` takes ``nodes`` more, and gains ``per_node`` with each."""

    place: int
    nodes: int
    per_node: float


def plan(problem: Problem, exact: Exact, planner: str) -> Plan:
    """The plan by prices, or the current allocation if that is better. It leaves ending nodes alone, and then knows no
    bound. Trainers that must run are not known here: they are pinned if they are left out (:mod:`pilot.planners`)."""
    problem = replace(problem, candidates=tuple(replace(c, must_run=False) for c in problem.candidates))
    ranked = steps(problem)
    counts, price = _taken(problem, ranked)
    near = _nearest(ranked, price)
    counts = _filled(problem, _exact_near(problem, counts, near, exact), near)
    bound = None if problem.ending else relaxed(problem, ranked, problem.nodes)
    return best_known(problem, [plan_of(problem, counts, PlanStatus.INCUMBENT, None, planner)], bound, planner)


def steps(problem: Problem) -> list[Step]:
    """The steps of all candidates, from the highest gain per node on."""
    found = [step for place, c in enumerate(problem.candidates) for step in _steps(problem, place, c)]
    return sorted(found, key=attrgetter("per_node"), reverse=True)


def relaxed(problem: Problem, ranked: Sequence[Step], nodes: float) -> float:
    """The value of eq. 16 on ``nodes`` nodes if steps could be taken in part: an upper bound of all plans."""
    value = problem.objective({})
    for step in ranked:
        part = min(nodes, step.nodes)
        value, nodes = value + part * step.per_node, nodes - part
    return value


def values(curve: Curve, counts: NDArray[np.int64]) -> NDArray[np.float64]:
    """:meth:`Curve.at` for all ``counts`` (eq. 12)."""
    last = curve.nodes[-1]
    beyond = curve.per_s[-1] * counts / last
    return np.where(counts > last, beyond, np.interp(counts, curve.nodes, curve.per_s))


def _steps(problem: Problem, place: int, c: Candidate) -> Iterator[Step]:
    """One candidate's steps, from no nodes to its highest gain."""
    counts = np.array(c.turns(problem.nodes), dtype=np.int64)
    up, down = (c.value_at(c.current_nodes) * cost_s for cost_s in (c.rescale_up_s, c.rescale_down_s))
    costs = np.where(counts == c.current_nodes, 0.0, np.where(counts > c.current_nodes, up, down))
    hull = [(0, c.gain(0, problem.t_fwd_s))]
    gains = problem.t_fwd_s * values(c.value, counts) - costs
    for n, gain in zip(counts.tolist(), gains.tolist(), strict=True):
        while len(hull) > 1 and _lies_below(hull[-2], hull[-1], n, gain):
            hull.pop()
        hull.append((n, gain))
    for (n0, gain0), (n1, gain1) in pairwise(hull):
        if gain1 > gain0:
            yield Step(place, n1 - n0, (gain1 - gain0) / (n1 - n0))


def _lies_below(before: tuple[int, float], corner: tuple[int, float], n: int, gain: float) -> bool:
    """Whether ``corner`` is not above the line from the corner before to (n, gain)."""
    return (corner[1] - before[1]) * (n - corner[0]) <= (gain - corner[1]) * (corner[0] - before[0])


def _taken(problem: Problem, ranked: Sequence[Step]) -> tuple[list[int], float]:
    """The counts after all steps that fit, and the price. A candidate whose step does not fit makes no further one."""
    counts, left, stopped = [0] * len(problem.candidates), problem.nodes, dict[int, float]()
    for step in ranked:
        if step.nodes > left:
            stopped.setdefault(step.place, step.per_node)
        elif step.place not in stopped:
            counts[step.place] += step.nodes
            left -= step.nodes
    return counts, max(stopped.values(), default=0.0)


def _nearest(ranked: Sequence[Step], price: float) -> list[int]:
    """The candidates that have steps, those first whose next or last step is worth about the price."""
    away: dict[int, float] = {}
    for step in ranked:
        away[step.place] = min(abs(step.per_node - price), away.get(step.place, math.inf))
    return sorted(away, key=lambda place: (away[place], place))


def _exact_near(problem: Problem, counts: list[int], near: Sequence[int], exact: Exact) -> list[int]:
    """``counts`` with the best ones for as many candidates near the price as the exact planner can do soon."""
    nodes, wide, some = problem.nodes - sum(counts), 0, list[int]()
    for place in near:
        wide += min(problem.candidates[place].max_nodes, problem.nodes) + 1
        if (nodes + counts[place] + 1) * wide > EXACT_WORK:
            break
        nodes += counts[place]
        some.append(place)
    some.sort()
    made = exact(replace(problem, nodes=nodes, candidates=tuple(problem.candidates[p] for p in some), ending=0))
    better = dict(zip(some, (n for _, n in made.counts), strict=True)) if made is not None else {}
    return [better.get(place, n) for place, n in enumerate(counts)]


def _filled(problem: Problem, counts: list[int], near: Sequence[int]) -> list[int]:
    """``counts`` with the nodes that are left for whoever can use them, nearest to the price first."""
    left, filled = problem.nodes - sum(counts), list(counts)
    for place in near:
        c, now = problem.candidates[place], counts[place]
        tried = [now, c.most_within(now + left), *c.turns(now + left)]
        filled[place] = max(tried, key=lambda n: c.gain(n, problem.t_fwd_s) if n >= now else -math.inf)
        left -= filled[place] - now
    return filled
