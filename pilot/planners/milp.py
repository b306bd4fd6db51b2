"""Planner ``milp``: FreeTrain's problem in Pyomo, solved by CBC, GLPK or HiGHS.

The optimum of :mod:`pilot.planners.dp` comes first, in milliseconds: it is the incumbent; on problems of hundreds of
trainers and tens of thousands of nodes, the plan by prices (:mod:`pilot.planners.prices`). So a solver that runs out of
time, fails or writes nonsense never strands a node: the failure is logged, and the plan has a status that shows it.
"""

from __future__ import annotations

import logging
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pyomo.environ import ConcreteModel, Var
from pyomo.environ import value as value_of
from pyomo.repn.plugins.lp_writer import LPWriter

from pilot.core.errors import PilotError, SolverError
from pilot.core.plan.problem import Plan, PlanStatus, Problem
from pilot.planners import dp, mixed_model, model
from pilot.planners.choice import best_known, plan_of
from pilot.planners.solvers import NOTHING, find

log = logging.getLogger(__name__)

logging.getLogger("pyomo").handlers.clear()
"""Its own one writes to standard output, where commands print JSON."""

INCUMBENT_SHARE = 0.25
"""The share of the time limit that the incumbent may take; the rest is the solver's."""

NEGLIGIBLE_GAP = 1e-4
"""A plan by prices that is as near to its bound as this share needs no solver, which takes longer than this share of
the forward-looking time."""
NEGLIGIBLE_GAP_OF_TYPES = 1e-3
"""The same for several types, where solvers take seconds, and whole nodes lie further from the bound."""

TOLERANCE = 1e-9
"""A share of the objective: plans that differ by less are worth the same."""


@dataclass(frozen=True, slots=True)
class Formulation:
    """A model in Pyomo. It has ``scale`` and ``constant``: the value of eq. 16 is the objective / scale + constant.

    ``build`` makes it, ``counts`` (by type, if there are several) reads it, ``start`` (if there is one) sets variables
    to a known plan. ``ending`` reads how many of the counts are ending nodes, if the model has any.
    """

    planner: str
    build: Callable[[Problem], ConcreteModel]
    counts: Callable[[ConcreteModel], list[Any]]
    start: Callable[[ConcreteModel, Any], None] | None = None
    ending: Callable[[ConcreteModel], list[int]] | None = None


MIXED = Formulation("milp", mixed_model.build, mixed_model.counts, mixed_model.start)
PIECES = Formulation("milp", model.build, model.counts, model.start, model.ending)


@dataclass(frozen=True, slots=True)
class SolveOutcome:
    """The result of one solve: counts in the candidates' order (None: none found), the objective and a bound on it."""

    proved: bool = False
    counts: list[Any] | None = None
    bound: float | None = None
    build_s: float = 0.0
    solve_s: float = 0.0
    value: float | None = None
    ending: Sequence[int] = ()


def plan(problem: Problem, limit_s: float, solver: str = "cbc", formulation: Formulation = PIECES) -> Plan:
    """The optimal plan; the best one known if ``limit_s`` does not suffice.

    If the solver fails, that is logged, and the plan is made without it. :func:`pilot.planners.make` checks that it is
    installed.
    """
    started_s = time.monotonic()
    deadline_s = started_s + limit_s
    formulation = MIXED if problem.types else formulation
    incumbent = dp.incumbent(problem, started_s + INCUMBENT_SHARE * limit_s)
    outcome = SolveOutcome()
    if not any(c.most_within(problem.nodes) for c in problem.candidates):
        none = (0,) * len(problem.types) if problem.types else 0
        outcome = SolveOutcome(proved=True, counts=[none] * len(problem.candidates))
    elif time.monotonic() < deadline_s and not _nearly_best(problem, incumbent):
        outcome = attempt(problem, deadline_s, solver, formulation, incumbent)
    made = _choose(problem, outcome, incumbent, formulation.planner)
    return replace(made, build_s=outcome.build_s, solve_s=outcome.solve_s)


def solve(
    problem: Problem,
    deadline_s: float,
    solver: str = "cbc",
    formulation: Formulation = PIECES,
    start: Any = None,
    gap: float = 0.0,
) -> SolveOutcome:
    """Solve the formulation with ``solver``, from ``start`` on, until the monotonic clock shows ``deadline_s``.

    It is *proved* to within ``gap``, a share of the objective. Raises SolverError if the solver cannot be run, or gives
    no readable answer.
    """
    started_s = time.monotonic()
    m = formulation.build(problem)
    with tempfile.TemporaryDirectory(prefix="pilot-plan-") as directory:
        lp = Path(directory, "plan.lp")
        columns = _write(m, lp)
        known = _start(m, columns, formulation, start)
        built_s = time.monotonic()
        answer = find(solver)(lp, deadline_s - built_s, known, gap) if built_s < deadline_s else NOTHING
    counts = reached = None
    ending: Sequence[int] = ()
    if answer.values is not None:
        _load(m, columns, answer.values)
        counts = formulation.counts(m)
        ending = formulation.ending(m) if formulation.ending is not None else ()
        if not problem.permits(plan_of(problem, counts, PlanStatus.INCUMBENT, None, "", ending)):
            raise SolverError(f"its solution {counts} does not fit the problem")
        reached = value_of(m.value) / m.scale + m.constant
    bound = None if answer.bound is None else answer.bound / m.scale + m.constant
    times_s = built_s - started_s, time.monotonic() - built_s
    return SolveOutcome(answer.proved, counts, bound, *times_s, reached, ending)


def attempt(
    problem: Problem, deadline_s: float, solver: str, formulation: Formulation, start: Any, gap: float = 0.0
) -> SolveOutcome:
    """As :func:`solve`; an error is logged, and nothing was found."""
    try:
        return solve(problem, deadline_s, solver, formulation, start, gap)
    except (PilotError, OSError) as error:
        log.warning("solver %s: %s; using the best plan known without it", solver, error)
        return SolveOutcome()


def _choose(problem: Problem, outcome: SolveOutcome, incumbent: Plan, planner: str) -> Plan:
    """The optimum that the solver proved, else the best known plan if it beats the current allocation, else that one.

    Among plans that are worth the same, the incumbent is taken: its ties are broken, if it is the optimum of ``dp``.
    """
    known, margin = replace(incumbent, planner=planner), TOLERANCE * max(1.0, abs(incumbent.objective))
    solved = None
    if outcome.counts is not None:
        solved = plan_of(problem, outcome.counts, PlanStatus.OPTIMAL, 0.0, planner, outcome.ending)
    if not outcome.proved:
        bound = min((bound for bound in (outcome.bound, _bound(incumbent)) if bound is not None), default=None)
        return best_known(problem, [known, solved] if solved else [known], bound, planner)
    if solved is None or solved.objective < known.objective - margin:
        return known
    if solved.objective > known.objective + margin:
        return solved
    return replace(known, gap=0.0, status=PlanStatus.KEPT if known.status is PlanStatus.KEPT else PlanStatus.OPTIMAL)


def _nearly_best(problem: Problem, incumbent: Plan) -> bool:
    by_prices = incumbent.status is not PlanStatus.OPTIMAL
    negligible = NEGLIGIBLE_GAP_OF_TYPES if problem.types else NEGLIGIBLE_GAP
    return by_prices and incumbent.gap is not None and incumbent.gap <= negligible


def _bound(incumbent: Plan) -> float | None:
    """The bound by prices; None if ``dp`` made the plan, or there are ending nodes."""
    if incumbent.status is PlanStatus.OPTIMAL or incumbent.gap is None:
        return None
    return incumbent.objective + incumbent.gap * max(1.0, abs(incumbent.objective))


def _write(m: ConcreteModel, lp: Path) -> dict[str, Any]:
    """Write the model; returns its columns by their names in the file."""
    with lp.open("w") as file:
        names = LPWriter().write(m, file).symbol_map.bySymbol
    return {name: component for name, component in names.items() if component.ctype is Var}


def _start(m: ConcreteModel, columns: Mapping[str, Any], formulation: Formulation, known: Any) -> dict[str, float]:
    if known is None or formulation.start is None:
        return {}
    formulation.start(m, known)
    return {name: float(column.value) for name, column in columns.items() if column.value is not None}


def _load(m: ConcreteModel, columns: Mapping[str, Any], values: Mapping[str, float]) -> None:
    """Set each variable of the model to the solver's value; 0 if it gave none."""
    for variable in m.component_data_objects(Var):
        variable.set_value(0.0, skip_validation=True)
    for name, value in values.items():
        if name not in columns:
            raise SolverError(f"its solution has a column {name!r} that the model does not have")
        columns[name].set_value(value, skip_validation=True)
