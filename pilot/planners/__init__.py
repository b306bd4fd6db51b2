"""Planners: each takes a :class:`~pilot.core.plan.problem.Problem` and gives a :class:`~pilot.core.plan.problem.Plan`.

Each module of a planner has ``plan(problem, limit_s) -> Plan``, for problems without pins; :func:`make` gives one by
name, which knows pins, too. Importing this package imports none of them: Pyomo and numpy are loaded by the planner that
needs them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from importlib import import_module

from pilot.core.errors import UserError
from pilot.core.ids import TrainerId
from pilot.core.plan import between
from pilot.core.plan.problem import Plan, PlanStatus, Problem

NAMES = ("milp", "milp-nodes", "dp", "equal-share", "flotilla", "rolling-horizon", "rolling-horizon-costs", "greedy")
"""The planners; the first one is the default."""

SOLVERS = ("cbc", "glpk", "highs")
"""The solvers of ``milp``, ``milp-nodes`` and ``rolling-horizon``; the first one is the default."""

TIMED = frozenset({"rolling-horizon", "rolling-horizon-costs", "greedy"})
"""The planners that need to know how long trainers have trained, and how much work they have left."""


def usual_objective(name: str) -> str:
    """What the planner ``name`` maximises by default. A flotilla's pace is in samples per second."""
    return "throughput" if name == "flotilla" else "scaling-efficiency"


def make(name: str = NAMES[0], solver: str = SOLVERS[0], limit_s: float = 10.0) -> Callable[[Problem], Plan]:
    """The planner called ``name``, picklable, with at most ``limit_s`` for each plan. Between two decisions of a
    cadence all planners answer the same. It honours pins.

    Raises
    ------
    UserError
        If there is no such planner or solver, or the solver is not installed.
    """
    return partial(_with_pins, planner=partial(_answer, _free(name, solver, limit_s)))


def _answer(planner: Callable[[Problem], Plan], problem: Problem) -> Plan:
    return between.plan(problem) if problem.between else planner(problem)


def _free(name: str, solver: str, limit_s: float) -> Callable[[Problem], Plan]:
    """The planner for problems without pins when a decision is due."""
    match name:
        case "milp" | "milp-nodes":
            import_module("pilot.planners.solvers").find(solver)
            milp = import_module("pilot.planners.milp")
            formulation = milp.PIECES if name == "milp" else milp.NODES
            return partial(milp.plan, limit_s=limit_s, solver=solver, formulation=formulation)
        case "dp":
            return partial(import_module("pilot.planners.dp").plan, limit_s=limit_s)
        case "rolling-horizon" | "rolling-horizon-costs":
            import_module("pilot.planners.solvers").find(solver)
            plan, costs = import_module("pilot.research.planners.rolling_horizon").plan, name == "rolling-horizon-costs"
            return partial(plan, limit_s=limit_s, solver=solver, costs=costs)
        case "greedy":
            return partial(import_module("pilot.research.planners.greedy").plan, limit_s=limit_s)
        case "equal-share":
            return partial(import_module("pilot.planners.choice").plan, limit_s=limit_s)
        case "flotilla":
            return partial(import_module("pilot.research.planners.flotilla").plan, limit_s=limit_s)
        case _:
            raise UserError(f"unknown planner {name!r}; there are: {', '.join(NAMES)}")


def _with_pins(problem: Problem, planner: Callable[[Problem], Plan]) -> Plan:
    """What ``planner`` makes of the candidates that are not pinned, with those that are. All pins fit together.

    A candidate that has a pin gets exactly that many nodes: that is a constant of eq. 16, so it is taken out of the
    problem before any planner sees it, and put into the plan afterwards.
    """
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
