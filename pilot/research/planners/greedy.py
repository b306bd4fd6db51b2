"""Planner ``greedy``: Huawei's rule-based allocator (§3), the benchmark of their optimal one.

Its four scenarios, by whether nodes idle and trainers wait:

1. nodes idle and trainers wait: the first one gets as many as it can use, then the next;
2. nodes idle and no trainer waits: the one that has trained the shortest time grows as far as it can, then the next;
3. no node idles and trainers wait: the trainer that has trained longest gives half of its nodes, and the first one that
   waits gets them; this is done once for each that waits, as long as some trainer can give;
4. no node idle and no trainer waits: nothing changes.

The paper leaves open how ties are broken (here: the earlier submitted first), how nodes are halved if sizes are given
(to the largest size within half), and how often scenario 3 happens in one decision (here: for each that waits).
"""

from __future__ import annotations

import math

from pilot.core.ids import TrainerId
from pilot.core.plan import between
from pilot.core.plan.problem import Candidate, Plan, PlanStatus, Problem


def plan(problem: Problem, limit_s: float = math.inf) -> Plan:  # noqa: ARG001  # the planners' signature
    """The plan of the rules; its distance from any optimum is not known."""
    counts = between.plan(problem).as_dict()
    if all(counts[c.trainer] for c in problem.candidates):
        counts = _grown(problem, counts)
    counts = _shared(problem, counts)
    return Plan(PlanStatus.INCUMBENT, tuple(counts.items()), problem.objective(counts), None, "greedy")


def _grown(problem: Problem, counts: dict[TrainerId, int]) -> dict[TrainerId, int]:
    """Scenario 2."""
    idle = problem.nodes - sum(counts.values())
    for c in sorted(problem.candidates, key=lambda c: c.trained_s):
        if counts[c.trainer] >= c.min_nodes:
            most = max(counts[c.trainer], c.most_within(counts[c.trainer] + idle))
            idle -= most - counts[c.trainer]
            counts[c.trainer] = most
    return counts


def _shared(problem: Problem, counts: dict[TrainerId, int]) -> dict[TrainerId, int]:
    """Scenario 3."""
    longest_first = sorted(problem.candidates, key=lambda c: -c.trained_s)
    for waiting in [c for c in problem.candidates if counts[c.trainer] < c.min_nodes]:
        for donor in longest_first:
            half = _half(donor, counts[donor.trainer])
            freed = problem.nodes - sum(counts.values()) + counts[donor.trainer] - half
            most = waiting.most_within(counts[waiting.trainer] + freed)
            if half and most:
                counts[donor.trainer], counts[waiting.trainer] = half, most
                break
    return counts


def _half(candidate: Candidate, nodes: int) -> int:
    """How many of ``nodes`` a trainer keeps; 0 if it cannot run on fewer."""
    return candidate.most_within(nodes // 2)
