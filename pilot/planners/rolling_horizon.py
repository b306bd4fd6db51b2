"""Planner ``rolling-horizon``: Huawei's optimal allocator (§4), in Pyomo on CBC, GLPK or HiGHS.

It looks five steps ahead, and only the first step is put in force. Prices per node and step (:mod:`.prices`) give a
plan first, in milliseconds. It is the incumbent, so running out of time, or a solver that fails, never leaves a trainer
without nodes. If it is not within :data:`GAP` of the bound, a solver improves it; the bound says which choices it can
skip: a fifth to four fifths of the binaries.
"""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from functools import partial

from pilot.core.errors import PilotError
from pilot.core.losses import NO_LOSS
from pilot.core.problem import Plan, PlanStatus, Problem
from pilot.planners import horizon, milp
from pilot.planners.choice import plan_of
from pilot.planners.horizon import counts_of, jobs_of
from pilot.planners.prices import CLOSE, Priced, priced

log = logging.getLogger(__name__)

NAME, COSTS = "rolling-horizon", "rolling-horizon-costs"
GAP = 5e-3
"""A share of the objective. Nothing better is searched for, since the problem is another one in five minutes."""

COMPACT = milp.Formulation(NAME, horizon.build, horizon.counts, horizon.start)


def plan(problem: Problem, limit_s: float, solver: str = "cbc", gap: float = GAP, costs: bool = False) -> Plan:
    """The first step of the best five, to within a ``gap``; the best incumbent if ``limit_s`` does not suffice.

    ``costs``: rescales cost what they do, and so do the preemptions that are to be expected (planner
    ``rolling-horizon-costs``), and the prices' plan is taken as it is; in the paper they are free.
    The plan's ``objective`` is eq. 16's, as of all planners; ``gap`` is that of the paper's own objective (eq. 1).
    """
    started_s = time.monotonic()
    jobs = jobs_of(problem, losses=problem.losses if costs else NO_LOSS)
    if len(jobs) < len(problem.candidates):
        log.info("rolling horizon: %d of %d trainers fit; the others wait", len(jobs), len(problem.candidates))
    if not jobs:
        return plan_of(problem, [0] * len(problem.candidates), PlanStatus.OPTIMAL, 0.0, NAME)
    known = priced(jobs, problem.nodes, started_s + limit_s / 2, costs=costs)
    first = counts_of(problem, jobs, [job.sizes[c[0]] for job, c in zip(jobs, known.courses, strict=True)])
    outcome = milp.SolveOutcome()
    if not costs and not known.within(gap):
        outcome = _solved(problem, started_s + limit_s, solver, known, gap)
    made = _choose(problem, first, known, outcome, gap)
    name = COSTS if costs else NAME
    return replace(made, planner=name, build_s=outcome.build_s, solve_s=time.monotonic() - started_s - outcome.build_s)


def _solved(problem: Problem, deadline_s: float, solver: str, known: Priced, gap: float) -> milp.SolveOutcome:
    try:
        build = partial(horizon.build, without=known.hopeless())
        return milp.solve(problem, deadline_s, solver, replace(COMPACT, build=build), known.courses, gap)
    except (PilotError, OSError) as error:
        log.warning("solver %s: %s; using the best plan known without it", solver, error)
        return milp.SolveOutcome()


def _choose(problem: Problem, first: list[int], known: Priced, outcome: milp.SolveOutcome, within: float) -> Plan:
    """Of plans that are worth the same, the incumbent is taken."""
    counts, value = first, known.value
    if outcome.counts is not None and outcome.value is not None and outcome.value > value * (1 + milp.TOLERANCE):
        counts, value = outcome.counts, outcome.value
    bounds = [bound for bound in (known.bound, outcome.bound) if bound is not None]
    if outcome.proved:
        bounds.append(value * (1 + within))
    gap = max(0.0, min(bounds) - value) / max(1.0, value) if bounds else None
    if gap is not None and gap <= CLOSE:
        return plan_of(problem, counts, PlanStatus.OPTIMAL, 0.0, NAME)
    return plan_of(problem, counts, PlanStatus.INCUMBENT, gap, NAME)
