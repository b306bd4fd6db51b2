"""Planner ``equal-share``: the nodes are divided equally among the trainers (the baseline of FreeTrain §5.1).

The paper says no more than that its baseline "distributes nodes equally to Trainers" and meets the constraints of the
MILP. Here: node by node in turn, in submission order, to those that can still take one. So all have the same number, or
one more for the first ones; who has ``max_nodes`` leaves the rest to the others. Where the equal part is less than
somebody's ``min_nodes``, the last submitted one of those goes without, and the others divide again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from pilot.core.problem import Candidate, Plan, PlanStatus, Problem


def plan(problem: Problem, limit_s: float = math.inf) -> Plan:  # noqa: ARG001 - the planners' common interface
    """The equal shares, whether or not they are better than now; nothing is known of how far from the optimum."""
    named = {c.trainer: n for c, n in zip(problem.candidates, shares(problem), strict=True)}
    return Plan(PlanStatus.INCUMBENT, tuple(named.items()), problem.objective(named), None, "equal-share")


def shares(problem: Problem) -> list[int]:
    """Equal node counts in the candidates' order. They respect all sizes and the capacity."""
    taking = list(problem.candidates)
    while short := _without_min(taking, problem.nodes):
        taking.remove(short[-1])
    counts = dict(zip((c.trainer for c in taking), _divide(problem.nodes, taking), strict=True))
    return [counts.get(c.trainer, 0) for c in problem.candidates]


def _without_min(candidates: Sequence[Candidate], nodes: int) -> list[Candidate]:
    return [c for c, n in zip(candidates, _divide(nodes, candidates), strict=True) if n < c.min_nodes]


def _divide(nodes: int, candidates: Sequence[Candidate]) -> list[int]:
    """Equal parts of ``nodes``, none larger than ``max_nodes``; what does not divide goes to the first ones."""
    level = _level(nodes, sorted(c.max_nodes for c in candidates))
    given = [min(c.max_nodes, level) for c in candidates]
    spare = nodes - sum(given)
    for i, candidate in enumerate(candidates):
        if spare and candidate.max_nodes > level:
            given[i], spare = given[i] + 1, spare - 1
    return given


def _level(nodes: int, limits: list[int]) -> int:
    """The largest part that all can have, save those whose (ascending) limit is smaller."""
    takers = len(limits)
    for limit in limits:
        if limit > nodes // takers:
            return nodes // takers
        nodes, takers = nodes - limit, takers - 1
    return limits[-1] if limits else 0
