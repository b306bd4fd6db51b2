"""Planners: each takes a :class:`~pilot.core.plan.problem.Problem` and gives a :class:`~pilot.core.plan.problem.Plan`.

Each planner's module has ``plan(problem, limit_s) -> Plan``, for all candidates of a problem without pins; :func:`make`
gives one by name, which decides who shares the pool (:mod:`pilot.planners.admission`) and honours pins, too. Importing
this package imports none of them: Pyomo and numpy are loaded by the planner that needs them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import import_module

from pilot.core.errors import UserError
from pilot.core.ids import TrainerId
from pilot.core.plan import between
from pilot.core.plan.problem import Plan, PlanStatus, Problem


@dataclass(frozen=True, slots=True)
class _Entry:
    """A planner: its module, and the options of ``plan`` there."""

    module: str
    options: Mapping[str, object] = field(default_factory=dict)
    solver: bool = False  #: whether it uses a solver
    timed: bool = False  #: whether it needs to know how long trainers have trained, and how much work they have left
    typed: bool = False  #: whether it can tell types of nodes apart
    objective: str = "scaling-efficiency"  #: the one that it maximises by default


_HORIZON = "pilot.research.planners.rolling_horizon"
_PLANNERS = {
    "milp": _Entry("pilot.planners.milp", solver=True, typed=True),
    "dp": _Entry("pilot.planners.dp", typed=True),
    "equal-share": _Entry("pilot.planners.choice"),
    "flotilla": _Entry("pilot.research.planners.flotilla", objective="throughput"),  # its pace is in samples per second
    "rolling-horizon": _Entry(_HORIZON, solver=True, timed=True),
    "rolling-horizon-costs": _Entry(_HORIZON, {"costs": True}, solver=True, timed=True),
    "greedy": _Entry("pilot.research.planners.greedy", timed=True),
}
NAMES = tuple(_PLANNERS)
"""The planners; the first one is the default."""

SOLVERS = ("cbc", "glpk", "highs")
"""The solvers of ``milp`` and ``rolling-horizon``; the first one is the default."""

TIMED = frozenset(name for name, entry in _PLANNERS.items() if entry.timed)
"""The planners that need to know how long trainers have trained, and how much work they have left."""

TYPED = frozenset(name for name, entry in _PLANNERS.items() if entry.typed)
"""The planners that can tell types of nodes apart."""


def check_tells_types(name: str) -> None:
    """:class:`UserError` if the planner ``name`` cannot tell types of nodes apart."""
    if name not in TYPED:
        raise UserError(f"--planner {name} cannot tell types of nodes apart; use {' or '.join(sorted(TYPED))}")


def usual_objective(name: str) -> str:
    """The objective that the planner ``name`` maximises by default."""
    return _entry(name).objective


def _entry(name: str) -> _Entry:
    if name not in _PLANNERS:
        raise UserError(f"unknown planner {name!r}; there are: {', '.join(NAMES)}")
    return _PLANNERS[name]


def make(name: str = NAMES[0], solver: str = SOLVERS[0], limit_s: float = 10.0) -> Callable[[Problem], Plan]:
    """The planner called ``name``, picklable, with at most ``limit_s`` for each plan. Between two decisions of a
    cadence all planners answer the same. It decides who shares the pool if the problem leaves that open, and honours
    pins.

    Raises
    ------
    UserError
        If there is no such planner or solver, or the solver is not installed; from the planner, if it is given several
        types of nodes that it cannot tell apart.
    """
    entry = _entry(name)
    options: dict[str, object] = {"limit_s": limit_s}
    if entry.solver:
        import_module("pilot.planners.solvers").find(solver)
        options["solver"] = solver
    planner = partial(import_module(entry.module).plan, **options, **entry.options)
    planner = partial(_with_pins, planner=partial(_answer, name, planner))
    return partial(_sharing, planner=partial(_with_turns, planner=planner))


def _sharing(problem: Problem, planner: Callable[[Problem], Plan]) -> Plan:
    """The plan of ``planner`` for those that share the pool."""
    if problem.queue_share >= 1.0:
        return planner(problem)
    made: Plan = import_module("pilot.planners.admission").plan(problem, planner)
    return made


def _answer(name: str, planner: Callable[[Problem], Plan], problem: Problem) -> Plan:
    if problem.types:
        check_tells_types(name)
    return between.plan(problem) if problem.between else planner(problem)


def _with_turns(problem: Problem, planner: Callable[[Problem], Plan]) -> Plan:
    """The plan of ``planner``, which may know nothing of trainers that must run: those that it leaves out are pinned to
    their minimum, and it plans again."""
    made = planner(problem)
    counts = made.as_dict()
    out = [c.trainer for c in problem.candidates if c.must_run and not c.allows(counts[c.trainer])]
    if not out or problem.types:
        return made
    pinned = (replace(c, pin=c.min_nodes) if c.trainer in out else c for c in problem.candidates)
    return _with_turns(replace(problem, candidates=tuple(pinned)), planner)


def _with_pins(problem: Problem, planner: Callable[[Problem], Plan]) -> Plan:
    """The plan of ``planner`` for the candidates that are not pinned, and the pins, which fit together.

    A candidate that has a pin gets exactly that many nodes, a constant of eq. 16. So it is taken out of the problem
    before any planner sees it, and put into the plan afterwards. With several types planners honour pins themselves.
    """
    pinned = {c.trainer: c.pin for c in problem.candidates if c.pin is not None}
    if not pinned or problem.types:
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
