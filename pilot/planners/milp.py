"""Planners ``milp`` and ``milp-nodes``: FreeTrain's problem in Pyomo, solved by CBC, GLPK or HiGHS.

The optimum of :mod:`pilot.planners.dp` comes first, in milliseconds: it is the incumbent. So a solver that runs out of
time, fails or writes nonsense never strands a node; what went wrong is logged, and the plan's status says what it is.
"""

from __future__ import annotations

import logging
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

from pyomo.environ import ConcreteModel, Var
from pyomo.repn.plugins.lp_writer import LPWriter

from pilot.core.errors import SolverError
from pilot.core.problem import Plan, PlanStatus, Problem
from pilot.planners import dp, model, model_nodes
from pilot.planners.choice import best_known, in_submission_order, plan_of
from pilot.planners.solvers import NOTHING, find

log = logging.getLogger(__name__)

TOLERANCE = 1e-9
"""Relative to the objective: what a solver's optimum may lack."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one solve: counts in the candidates' order (None: none found), and a bound on the objective."""

    proved: bool = False
    counts: list[int] | None = None
    bound: float | None = None
    build_s: float = 0.0
    solve_s: float = 0.0


def plan(problem: Problem, limit_s: float, solver: str = "cbc") -> Plan:
    """The per-piece formulation (:mod:`pilot.planners.model`)."""
    return _plan(problem, limit_s, solver, model, "milp")


def plan_nodes(problem: Problem, limit_s: float, solver: str = "cbc") -> Plan:
    """FreeTrain's formulation over nodes (:mod:`pilot.planners.model_nodes`); for small instances."""
    return _plan(problem, limit_s, solver, model_nodes, "milp-nodes")


def solve(problem: Problem, deadline_s: float, solver: str, formulation: ModuleType = model) -> Outcome:
    """What ``solver`` makes of the formulation until the monotonic clock shows ``deadline_s``.

    Raises
    ------
    SolverError
        Where the solver cannot be run, or gives no readable answer.
    """
    run, started_s = find(solver), time.monotonic()
    m = formulation.build(problem)
    with tempfile.TemporaryDirectory(prefix="pilot-plan-") as directory:
        lp = Path(directory, "plan.lp")
        with lp.open("w") as file:
            columns = LPWriter().write(m, file).symbol_map.bySymbol
        built_s = time.monotonic()
        answer = run(lp, deadline_s - built_s) if built_s < deadline_s else NOTHING
    times = {"build_s": built_s - started_s, "solve_s": time.monotonic() - built_s}
    bound = None if answer.bound is None else answer.bound / m.scale + m.constant
    if answer.values is None:
        return Outcome(bound=bound, **times)
    _load(m, columns, answer.values, solver)
    counts = _checked(problem, formulation.counts(m), solver)
    return Outcome(answer.proved, counts, bound, **times)


def _plan(problem: Problem, limit_s: float, solver: str, formulation: ModuleType, planner: str) -> Plan:
    deadline_s = time.monotonic() + limit_s
    incumbent = dp.best_counts(problem, deadline_s)
    if not any(c.min_nodes <= problem.nodes for c in problem.candidates):
        return plan_of(problem, [0] * len(problem.candidates), PlanStatus.OPTIMAL, 0.0, planner)
    try:
        outcome = solve(problem, deadline_s, solver, formulation) if time.monotonic() < deadline_s else Outcome()
    except SolverError as error:
        log.warning("%s; the plan is what is known without it", error)
        outcome = Outcome()
    made = _choose(problem, outcome, incumbent, planner)
    return replace(made, build_s=outcome.build_s, solve_s=outcome.solve_s)


def _choose(problem: Problem, outcome: Outcome, incumbent: list[int] | None, planner: str) -> Plan:
    """The solver's proved optimum; without one, the best that is known if better than now, else as now."""
    known = [counts for counts in (outcome.counts, incumbent) if counts is not None]
    if not outcome.proved:
        return best_known(problem, known, outcome.bound, planner)
    optimum, *others = (plan_of(problem, counts, PlanStatus.OPTIMAL, 0.0, planner) for counts in known)
    for other in others:
        if other.objective > optimum.objective + TOLERANCE * max(1.0, abs(optimum.objective)):
            log.warning("%s: proved %r, but %r is known", planner, optimum.objective, other.objective)
            return other
    return optimum


def _load(m: ConcreteModel, columns: Mapping[str, Any], values: Mapping[str, float], solver: str) -> None:
    """Set each variable of the model to what the solver said, 0 where it said nothing."""
    for variable in m.component_data_objects(Var):
        variable.set_value(0.0, skip_validation=True)
    for name, value in values.items():
        if name not in columns:
            raise SolverError(f"{solver}: its solution has a column {name!r} that the model does not have")
        columns[name].set_value(value, skip_validation=True)


def _checked(problem: Problem, counts: list[int], solver: str) -> list[int]:
    """The counts, ties between alike trainers settled; :class:`SolverError` where no plan may look so."""
    named = {c.trainer: n for c, n in zip(problem.candidates, counts, strict=True)}
    if not problem.feasible(named):
        raise SolverError(f"{solver}: its solution {counts} does not fit the problem")
    return in_submission_order(problem, counts)
