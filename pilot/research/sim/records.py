"""The records of a replay: one row per virtual time, one per solve."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

from pilot.core.curves.curve import Curve
from pilot.core.plan.idle import Idle
from pilot.core.plan.problem import Plan, PlanStatus, Problem
from pilot.research.sim.accounting import Account
from pilot.research.traces.fragments import Floats
from pilot.research.traces.workload import WorkloadRow


@dataclass(frozen=True, slots=True, order=True)
class Kind:
    """Trainers of one kind do the same work on the same nodes."""

    curve: int
    min_nodes: int
    max_nodes: int
    sizes: tuple[int, ...] = ()
    speeds: tuple[float, ...] = (1.0,)  #: on a node of each of the trace's types; 0: it cannot use them
    equal_shares: bool = False


Admitted = tuple[tuple[Kind, int], ...]
"""How many trainers of each kind shared the pool, by kind."""


@dataclass(frozen=True, slots=True)
class Moment:
    """One virtual time, after it was settled.

    ``gained`` is the work done since the moment before; ``preemption`` and ``rescale`` are the costs of this moment's
    changes, all three in node-seconds at the speed of one node. ``used`` nodes train, of ``pool``; ``profiled`` of them
    under profiles. ``profiling`` is the part of ``rescale`` that was paid as a profile began, continued or ended.
    ``spread``: if a unit of the pool is a GPU, the nodes that trainers span beyond the minimum. ``pool_types``: how
    many nodes of the pool are of each type.
    """

    time_s: float
    pool: int
    used: int
    joined: int
    left: int
    gained: float
    preemption: float
    rescale: float
    spread: int = 0
    profiled: int = 0
    profiling: float = 0.0
    pool_types: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class SolveRecord:
    """One solve: its size, the plan's status, and the (wall-clock) times, which decide nothing."""

    nodes: int
    candidates: int
    status: PlanStatus
    build_s: float
    solve_s: float


class Records:
    """Moments, who was admitted in each, and which bound left nodes idle; solves; the kinds of trainers with their
    curves; when most of the pool's budget was used and when all of it (None: never)."""

    def __init__(self) -> None:
        self.moments: list[Moment] = []
        self.admitted: list[Admitted] = []
        self.idle: list[Idle | None] = []
        self.solves: list[SolveRecord] = []
        self.curves: dict[Kind, Curve] = {}
        self.budget_warned_s: float | None = None
        self.budget_ended_s: float | None = None
        self._weights: dict[int, float] = {}

    def weight(self, submission: WorkloadRow) -> float:
        """Work per sample: node-seconds that one node of its reference type takes for it."""
        weight = self._weights.get(submission.curve)
        if weight is None:
            curve = submission.spec.curve or Curve.proportional()
            weight = self._weights[submission.curve] = 1.0 / curve.single_node_rate()
        return weight

    def add(self, moment: Moment, running: Sequence[Account], idle: Idle | None) -> None:
        """Record a settled moment, the trainers that share the pool from then on, and the nodes that a bound leaves
        idle."""
        counts: dict[Kind, int] = {}
        for account in running:
            row, spec = account.submission, account.submission.spec
            kind = Kind(row.curve, spec.min_nodes, spec.max_nodes, spec.sizes, account.speeds, row.equal_shares)
            self.curves.setdefault(kind, account.curve)
            counts[kind] = counts.get(kind, 0) + 1
        self.moments.append(moment)
        self.admitted.append(tuple(sorted(counts.items())))
        self.idle.append(idle)

    def solved(self, problem: Problem, plan: Plan) -> None:
        """Record a solve."""
        record = SolveRecord(problem.nodes, len(problem.candidates), plan.status, plan.build_s, plan.solve_s)
        self.solves.append(record)

    def columns(self) -> dict[str, Floats]:
        """The moments by column."""
        names = [field.name for field in fields(Moment) if field.name != "pool_types"]
        return {name: np.array([getattr(moment, name) for moment in self.moments], dtype=float) for name in names}
