"""Pins: a candidate that has one gets exactly that many nodes. What is pinned is a constant of eq. 16, so it is taken
out of the problem before any planner sees it, and put into the plan afterwards."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from pilot.core.ids import TrainerId
from pilot.core.problem import Plan, PlanStatus, Problem


def plan(problem: Problem, planner: Callable[[Problem], Plan]) -> Plan:
    """What ``planner`` makes of the candidates that are not pinned, with those that are. All pins fit together."""
    pinned = {c.trainer: c.pin for c in problem.candidates if c.pin is not None}
    if not pinned:
        return planner(problem)
    free = tuple(c for c in problem.candidates if c.pin is None)
    rest = replace(problem, nodes=problem.nodes - sum(pinned.values()), candidates=free)
    return _joined(problem, pinned, planner(rest) if free else Plan(PlanStatus.OPTIMAL, (), 0.0, planner="pins"))


def _joined(problem: Problem, pinned: dict[TrainerId, int], made: Plan) -> Plan:
    """``made`` with the pins. If they change a count, the result is a plan of its own, so parked nodes become 0."""
    counts = {**made.as_dict(), **pinned}
    status = made.status
    if status is PlanStatus.KEPT and counts != problem.kept():
        status = PlanStatus.INCUMBENT
        counts = {c.trainer: counts[c.trainer] if c.allows(counts[c.trainer]) else 0 for c in problem.candidates}
    objective = problem.objective(counts, dict(made.ending))
    gap = None if made.gap is None else made.gap * max(1.0, abs(made.objective)) / max(1.0, abs(objective))
    in_order = tuple((c.trainer, counts[c.trainer]) for c in problem.candidates)
    return replace(made, status=status, counts=in_order, objective=objective, gap=gap)
