"""Between two scheduled decisions, waiting trainers get idle nodes (Huawei §2, §5.1).

The first waiting trainer gets as many idle nodes as it can use, then the next one. No other trainer's nodes change.
Of several types of nodes it gets those on which it is fastest.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from pilot.core.ids import TrainerId
from pilot.core.plan.problem import ByType, Plan, PlanStatus, Problem, place


def filled(problem: Problem, held: Mapping[TrainerId, ByType]) -> dict[TrainerId, ByType]:
    """The new nodes by type, given those that are ``held``. A parked trainer counts as waiting, and its nodes are not
    idle; it has none if it cannot get more.
    """
    given, idle = _running(problem, held), _less(problem.types_nodes, *held.values())
    none = (0,) * len(idle)
    for candidate in problem.candidates:
        now = held[candidate.trainer]
        most = candidate.most_of(_less(idle, _less(none, now))) if sum(now) < candidate.min_nodes else now
        if most != now and any(most):
            given[candidate.trainer], idle = most, _less(idle, _less(most, now))
    return given


def _less(nodes: ByType, *taken: ByType) -> ByType:
    return tuple(n - sum(each) for n, *each in zip(nodes, *taken, strict=True))


def _running(problem: Problem, held: Mapping[TrainerId, ByType]) -> dict[TrainerId, ByType]:
    nothing = (0,) * len(problem.types)
    runs = {c.trainer: sum(held[c.trainer]) >= c.min_nodes for c in problem.candidates}
    return {trainer: held[trainer] if there else nothing for trainer, there in runs.items()}


def staying(problem: Problem) -> dict[TrainerId, ByType]:
    """The nodes that each trainer keeps: if some were lost, those submitted last go without."""
    given, left = dict[TrainerId, ByType](), problem.types_nodes
    for c in problem.candidates:
        stays = tuple(min(held, there) for held, there in zip(c.held, left, strict=True))
        given[c.trainer] = stays if c.current_nodes < c.min_nodes else c.most_of(stays)
        left = _less(left, given[c.trainer])
    return given


def interim(problem: Problem) -> Problem | None:
    """Return the problem to solve between two decisions; None if no trainer can get more and all pins hold. Turns begin
    with decisions."""
    problem = replace(problem, candidates=tuple(replace(c, must_run=False) for c in problem.candidates))
    pinned = all(c.pin is None or c.pin == c.current_nodes for c in problem.candidates)
    typed = problem.with_types()
    held = typed.kept_by_type()
    asks = not pinned or filled(typed, held) != _running(typed, held)
    return replace(problem, between=True) if asks else None


def next_due_s(decided_s: float, every_s: float) -> float:
    """The next multiple of the cadence after a decision; infinite without a cadence (0)."""
    return (math.floor(decided_s / every_s) + 1) * every_s if every_s else math.inf


def plan(problem: Problem) -> Plan:
    """The plan between two decisions, the same for all planners."""
    typed = problem.with_types()
    pinned, others = ([c for c in typed.candidates if (c.pin is None) is free] for free in (False, True))
    idle = tuple(max(0, n) for n in _less(typed.types_nodes, *(c.held for c in others)))
    placed = place(pinned, idle) or place(pinned, typed.types_nodes) or []  # all pins fit together
    rest = replace(typed, candidates=tuple(others), types_nodes=_less(typed.types_nodes, *placed))
    given = dict(zip((c.trainer for c in pinned), placed, strict=True)) | filled(rest, staying(rest))
    by_type = {trainer: given[trainer] for trainer in problem.kept()}
    counts = {trainer: sum(nodes) for trainer, nodes in by_type.items()}
    worth = problem.objective_on(by_type) if problem.types else problem.objective(counts)
    kinds = tuple(by_type.items()) if problem.types else ()
    return Plan(PlanStatus.INCUMBENT, tuple(counts.items()), worth, None, "in-between", by_type=kinds)
