"""The common parts of planners: a candidate's gain as linear pieces over node counts, a :class:`Plan` from counts, and
the fallback if nothing was proved in time.

Planner ``equal-share``: the baseline of FreeTrain §5.1, which "distributes nodes equally to Trainers".

The paper states only that it meets the constraints of the MILP; the rest follows its authors' replay code, so that the
numbers can be compared with theirs. Each trainer gets the same part, rounded down, at most its ``max_nodes``, but
only if that is more than its ``min_nodes``. The rest goes to the trainers in submission order, to each as much
as it can take; so with fewer than two nodes per trainer the first ones get all.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from pilot.core.plan.problem import Candidate, Plan, PlanStatus, Problem, fits_in


def plan(problem: Problem, limit_s: float = math.inf) -> Plan:  # noqa: ARG001  # the planners' signature
    """The equal shares, whether or not they are better than now; their distance from the optimum is not known."""
    named = {c.trainer: n for c, n in zip(problem.candidates, shares(problem), strict=True)}
    return Plan(PlanStatus.INCUMBENT, tuple(named.items()), problem.objective(named), None, "equal-share")


def shares(problem: Problem) -> list[int]:
    """Equal node counts in the candidates' order. They respect all sizes and the capacity; those that must run have at
    least their minimum."""
    part = problem.nodes // max(1, len(problem.candidates))
    counts = [c.min_nodes if c.must_run else 0 for c in problem.candidates]
    equal = [part if part > c.min_nodes else 0 for c in problem.candidates]
    left = problem.nodes - sum(counts)
    for wanted in (equal, [problem.nodes] * len(counts)):
        for i, candidate in enumerate(problem.candidates):
            count = max(counts[i], candidate.most_within(min(wanted[i], counts[i] + left)))
            left -= count - counts[i]
            counts[i] = count
    return counts


def plan_of(
    problem: Problem,
    counts: Sequence[Any],
    status: PlanStatus,
    gap: float | None,
    planner: str,
    ending: Sequence[int] = (),
) -> Plan:
    """The plan that gives the i-th candidate ``counts[i]`` nodes, of each type if there are several, and ``ending[i]``
    (empty: none) of those that leave soon, with the objective's value for it."""
    named = {c.trainer: n for c, n in zip(problem.candidates, counts, strict=True)}
    if problem.types:
        total = tuple((trainer, sum(nodes)) for trainer, nodes in named.items())
        return Plan(status, total, problem.objective_on(named), gap, planner, by_type=tuple(named.items()))
    late = {c.trainer: n for c, n in zip(problem.candidates, ending, strict=False) if n}
    value = problem.objective(named, late)
    return Plan(status, tuple(named.items()), value, gap, planner, ending=tuple(late.items()))


def can_stay(problem: Problem) -> bool:
    """Whether the allocation may stay as it is. Nodes that are parked (fewer than ``min_nodes``) may stay parked."""
    typed = problem.with_types()
    waits = (c.current_nodes < c.min_nodes and not c.must_run and c.pin is None for c in typed.candidates)
    allowed = (parked or c.allows_on(c.held) for parked, c in zip(waits, typed.candidates, strict=True))
    return all(allowed) and fits_in((c.held for c in typed.candidates), typed.types_nodes)


def best_known(problem: Problem, incumbents: Sequence[Plan], bound: float | None, planner: str) -> Plan:
    """The best incumbent if it is better than the current allocation, else that one (FreeTrain §3.6).

    Staying is impossible if the pool has fewer nodes than are held: then the equal share is an incumbent, too, unless
    there are several types, for which ``incumbents`` has a plan. Of equal incumbents the first wins; ``bound`` is an
    upper bound of all plans' objectives, None if unknown.
    """
    plans = [replace(plan, status=PlanStatus.INCUMBENT) for plan in incumbents]
    if can_stay(problem):
        now = [c.held if problem.types else c.current_nodes for c in problem.candidates]
        plans.insert(0, plan_of(problem, now, PlanStatus.KEPT, None, planner))
    elif not problem.types:
        plans.append(plan_of(problem, shares(problem), PlanStatus.INCUMBENT, None, planner))
    best = max(plans, key=lambda plan: plan.objective)
    gap = None if bound is None else max(0.0, bound - best.objective) / max(1.0, abs(best.objective))
    return replace(best, gap=gap, planner=planner)


NO_GAIN = 1e-200
"""Gains below this do not count, so that scales stay finite."""


@dataclass(frozen=True, slots=True)
class LinearPiece:
    """Counts ``first`` to ``last``, on which eq. 16's term is ``gain + slope * (n - first)``, exact at each count.

    ``late``: this many ending nodes come on top of each.
    """

    first: int
    last: int
    gain: float
    slope: float
    late: int = 0


def pieces(candidate: Candidate, t_fwd_s: float, nodes: int) -> list[LinearPiece]:
    """The pieces that cover each count from ``min_nodes`` to ``max_nodes`` (at most ``nodes``) once, in order.

    They end where the scaling curve bends and on both sides of C_j, where the cost of a rescale begins. A curve may
    bend between two counts: a piece then ends at the count before, or holds just these two. Where only some sizes are
    allowed, each is a piece.
    """
    if candidate.sizes:
        return [
            LinearPiece(n, n, candidate.gain(n, t_fwd_s), 0.0) for n in candidate.sizes if n <= _most(candidate, nodes)
        ]
    found: list[LinearPiece] = []
    first, largest = candidate.min_nodes, _most(candidate, nodes)
    while first <= largest:
        last = min(_linear_until(candidate, first, largest), largest)
        gain = candidate.gain(first, t_fwd_s)
        slope = (candidate.gain(last, t_fwd_s) - gain) / max(1, last - first)
        found.append(LinearPiece(first, last, gain, slope))
        first = last + 1
    return found


def late_pieces(candidate: Candidate, problem: Problem) -> list[LinearPiece]:
    """The pieces with some of the problem's ending nodes; they end where the curve bends with them or without."""
    c, found = candidate, list[LinearPiece]()
    for late in range(1, problem.ending + 1):
        tried = (0, *range(c.min_nodes, _most(c, problem.nodes) + 1))
        stays = [n for n in tried if n >= c.current_nodes and c.allows(n) and c.allows(n + late)]
        bends = {near - more for n in c.value.nodes for near in (math.floor(n), math.ceil(n)) for more in (0, late)}
        while stays:
            length = next((i for i, n in enumerate(stays) if i and (n in bends or n > stays[i - 1] + 1)), len(stays))
            first, last = stays[0], stays[length - 1]
            gain = problem.gain(c, first + late, late)
            slope = (problem.gain(c, last + late, late) - gain) / max(1, last - first)
            found.append(LinearPiece(first, last, gain, slope, late))
            stays = stays[length:]
    return found


def _most(candidate: Candidate, nodes: int) -> int:
    return min(candidate.max_nodes, nodes)


def _linear_until(candidate: Candidate, first: int, largest: int) -> int:
    """Up to which count the gain is linear from ``first`` on."""
    if first == candidate.current_nodes:
        return first
    bends = candidate.value.nodes
    after = bisect_right(bends, first)
    last = max(first + 1, math.floor(bends[after])) if after < len(bends) else largest
    return min(last, candidate.current_nodes - 1) if first < candidate.current_nodes else last
