"""Planner ``equal-share``: the baseline of FreeTrain §5.1, which "distributes nodes equally to Trainers".

The paper says only that it meets the constraints of the MILP; the rest follows its authors' replay code, so that the
numbers can be compared with theirs. Each trainer gets the same whole part, at most its ``max_nodes``, but
only where that is more than its ``min_nodes``. What is left goes to the trainers in submission order, to each as much
as it can take; so with fewer than two nodes per trainer the first ones get all.
"""

from __future__ import annotations

import math

from pilot.core.problem import Plan, PlanStatus, Problem


def plan(problem: Problem, limit_s: float = math.inf) -> Plan:  # noqa: ARG001  # the planners' signature
    """The equal shares, whether or not they are better than now; their distance from the optimum is not known."""
    named = {c.trainer: n for c, n in zip(problem.candidates, shares(problem), strict=True)}
    return Plan(PlanStatus.INCUMBENT, tuple(named.items()), problem.objective(named), None, "equal-share")


def shares(problem: Problem) -> list[int]:
    """Equal node counts in the candidates' order. They respect all sizes and the capacity."""
    part = problem.nodes // max(1, len(problem.candidates))
    counts = [c.most_within(part) if part > c.min_nodes else 0 for c in problem.candidates]
    left = problem.nodes - sum(counts)
    for i, candidate in enumerate(problem.candidates):
        count = candidate.most_within(counts[i] + left)
        left -= count - counts[i]
        counts[i] = count
    return counts
