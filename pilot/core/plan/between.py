"""Between two scheduled decisions, waiting trainers get idle nodes (Huawei §2, §5.1).

The first waiting trainer gets as many idle nodes as it can use, then the next one. No other trainer's nodes change.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from pilot.core.ids import TrainerId
from pilot.core.plan.problem import Plan, PlanStatus, Problem


def filled(problem: Problem, held: Mapping[TrainerId, int]) -> dict[TrainerId, int]:
    """The new counts, given those that are ``held``. A parked trainer counts as waiting, and its nodes are not idle;
    its count is 0 if it cannot get more.
    """
    counts, idle = _running(problem, held), problem.nodes - sum(held.values())
    for candidate in problem.candidates:
        now = held[candidate.trainer]
        if now < candidate.min_nodes and (most := candidate.most_within(now + idle)):
            counts[candidate.trainer], idle = most, idle - (most - now)
    return counts


def _running(problem: Problem, held: Mapping[TrainerId, int]) -> dict[TrainerId, int]:
    return {c.trainer: held[c.trainer] if held[c.trainer] >= c.min_nodes else 0 for c in problem.candidates}


def staying(problem: Problem) -> dict[TrainerId, int]:
    """The nodes that each trainer keeps: if some were lost, those submitted last go without."""
    counts: dict[TrainerId, int] = {}
    left = problem.nodes
    for c in problem.candidates:
        stays = min(c.current_nodes, left)
        counts[c.trainer] = stays if c.current_nodes < c.min_nodes else c.most_within(stays)
        left -= counts[c.trainer]
    return counts


def interim(problem: Problem) -> Problem | None:
    """Return the problem to solve between two decisions; None if no trainer can get more and all pins hold. Turns begin
    with decisions."""
    problem = replace(problem, candidates=tuple(replace(c, must_run=False) for c in problem.candidates))
    held = problem.kept()
    pinned = all(c.pin is None or c.pin == c.current_nodes for c in problem.candidates)
    asks = not pinned or filled(problem, held) != _running(problem, held)
    return replace(problem, between=True) if asks else None


def next_due_s(decided_s: float, every_s: float) -> float:
    """The next multiple of the cadence after a decision; infinite without a cadence (0)."""
    return (math.floor(decided_s / every_s) + 1) * every_s if every_s else math.inf


def plan(problem: Problem) -> Plan:
    """The plan between two decisions, the same for all planners."""
    counts = filled(problem, staying(problem))
    return Plan(PlanStatus.INCUMBENT, tuple(counts.items()), problem.objective(counts), None, "in-between")
