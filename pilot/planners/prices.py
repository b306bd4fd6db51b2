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

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from pilot.core.curves.curve import Curve, concave_hull
from pilot.core.plan.problem import Candidate, Plan, PlanStatus, Problem
from pilot.planners.choice import best_known, plan_of

Counts = NDArray[np.int64]
Values = NDArray[np.float64]

EXACT_WORK = 3e7
"""The most additions of the exact planner for the trainers near the price: some 50 ms."""


@dataclass(frozen=True, slots=True)
class Steps:
    """Steps from the highest gain per node on: the candidate at ``place`` takes ``nodes`` more."""

    place: Counts
    nodes: Counts
    per_node: Values


def plan(problem: Problem, exact: Callable[[Problem], Plan | None], planner: str) -> Plan:
    """The plan by prices, or the current allocation if that is better. It leaves ending nodes alone, and then knows no
    bound."""
    steps = steps_of(problem)
    counts, price = _taken(problem, steps)
    near = _nearest(steps, price)
    counts = _filled(problem, _exact_near(problem, counts, near, exact), near)
    bound = None if problem.ending else relaxed(problem, steps, problem.nodes)
    return best_known(problem, [plan_of(problem, counts, PlanStatus.INCUMBENT, None, planner)], bound, planner)


def steps_of(problem: Problem) -> Steps:
    """The steps of all candidates."""
    hulls = [_hull(candidate, problem) for candidate in problem.candidates]
    place = np.repeat(np.arange(len(hulls)), [len(nodes) for nodes, _ in hulls])
    nodes = np.concatenate([np.zeros(0, dtype=np.int64), *(nodes for nodes, _ in hulls)])
    per_node = np.concatenate([np.zeros(0), *(per_node for _, per_node in hulls)])
    order = np.argsort(-per_node, kind="stable")
    return Steps(place[order], nodes[order], per_node[order])


def relaxed(problem: Problem, steps: Steps, nodes: float) -> float:
    """The value of eq. 16 on ``nodes`` nodes if steps could be taken in part: an upper bound of all plans."""
    least = {c.trainer: n for c, n in zip(problem.candidates, _least(problem), strict=True)}
    left = nodes - sum(least.values()) - (np.cumsum(steps.nodes) - steps.nodes)
    return problem.objective(least) + float(steps.per_node @ np.clip(left, 0, steps.nodes))


def _least(problem: Problem) -> list[int]:
    """The counts before the first step: the minimum of those that must run."""
    return [c.min_nodes if c.must_run else 0 for c in problem.candidates]


def values(curve: Curve, counts: Counts) -> Values:
    """:meth:`Curve.at` for all ``counts`` (eq. 12)."""
    last = curve.nodes[-1]
    beyond = curve.per_s[-1] * counts / last
    return np.where(counts > last, beyond, np.interp(counts, curve.nodes, curve.per_s))


def _hull(c: Candidate, problem: Problem) -> tuple[Counts, Values]:
    """One candidate's steps to its highest gain: their nodes, and what each of these gains."""
    counts = _bends(c, min(c.max_nodes, problem.nodes))
    up, down = (c.value_at(c.current_nodes) * cost_s for cost_s in (c.rescale_up_s, c.rescale_down_s))
    costs = np.where(counts == c.current_nodes, 0.0, np.where(counts > c.current_nodes, up, down))
    gains = problem.t_fwd_s * values(c.value, counts) - costs
    corners = np.array(concave_hull(zip(counts.tolist(), gains.tolist(), strict=True)))
    nodes = np.diff(corners[:, 0])
    per_node = np.diff(corners[:, 1]) / nodes
    return nodes[per_node > 0].astype(np.int64), per_node[per_node > 0]


def _bends(c: Candidate, most: int) -> Counts:
    """The allowed counts up to ``most`` between which the gain is linear: see :meth:`Candidate.wants`."""
    bends = np.minimum(c.value.nodes, most)
    tried = np.concatenate((np.floor(bends), np.ceil(bends), (c.min_nodes, most, c.current_nodes), c.sizes))
    counts = np.unique(tried.astype(np.int64))
    allowed = (counts >= c.min_nodes) & (counts <= most)
    if c.sizes:
        allowed &= np.isin(counts, c.sizes)
    return counts[allowed] if c.must_run else np.concatenate((np.zeros(1, dtype=np.int64), counts[allowed]))


def _taken(problem: Problem, steps: Steps) -> tuple[list[int], float]:
    """The counts after all steps before the first one that does not fit, and the price."""
    least = np.array(_least(problem), dtype=np.int64)
    first = int(np.searchsorted(np.cumsum(steps.nodes), problem.nodes - least.sum(), side="right"))
    taken = np.bincount(steps.place[:first], steps.nodes[:first], len(least)).astype(np.int64)
    return (least + taken).tolist(), float(steps.per_node[first]) if first < len(steps.per_node) else 0.0


def _nearest(steps: Steps, price: float) -> list[int]:
    """The candidates that have steps, those first whose next or last step is worth about the price."""
    order = np.argsort(np.abs(steps.per_node - price), kind="stable")
    return list(dict.fromkeys(steps.place[order].tolist()))


def _exact_near(
    problem: Problem, counts: list[int], near: Sequence[int], exact: Callable[[Problem], Plan | None]
) -> list[int]:
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
        more = c.most_within(now + left)
        if more > now and c.gain(more, problem.t_fwd_s) > c.gain(now, problem.t_fwd_s):
            filled[place], left = more, left - (more - now)
    return filled
