"""Planner ``rolling-horizon``: Huawei's optimal allocator (§4), in Pyomo on CBC, GLPK or HiGHS.

It plans five steps ahead, and only the first step takes effect. Prices per node and step (:func:`priced`) give a
plan first, in milliseconds. It is the incumbent, so running out of time, or a solver that fails, never leaves a trainer
without nodes. If it is not within :data:`GAP` of the bound, a solver improves it; the bound excludes
a fifth to four fifths of the binaries.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from heapq import heapify, heapreplace

import numpy as np
from numpy.typing import NDArray

from pilot.core.plan.problem import Plan, PlanStatus, Problem
from pilot.core.pool.losses import NO_LOSS
from pilot.planners import milp
from pilot.planners.choice import plan_of
from pilot.research.planners import horizon
from pilot.research.planners.horizon import STEPS, HuaweiJob, counts_of, jobs_of

log = logging.getLogger(__name__)

NAME, COSTS = "rolling-horizon", "rolling-horizon-costs"
GAP = 5e-3
"""A share of the objective. No better plan is searched for, since the problem will differ in five minutes."""

COMPACT = milp.Formulation(NAME, horizon.build, horizon.counts, horizon.start)


def plan(problem: Problem, limit_s: float, solver: str = "cbc", gap: float = GAP, costs: bool = False) -> Plan:
    """The first step of the best five, to within a ``gap``; the best incumbent if ``limit_s`` does not suffice.

    ``costs``: rescales and expected preemptions have their costs, and the prices' plan is taken as it is (planner
    ``rolling-horizon-costs``); in the paper they are free.
    The plan's ``objective`` is that of eq. 16, as in all planners, its ``gap`` that of the paper's objective (eq. 1).
    """
    started_s = time.monotonic()
    jobs = jobs_of(problem, losses=problem.losses if costs else NO_LOSS)
    if len(jobs) < len(problem.candidates):
        log.info("rolling horizon: %d of %d trainers fit; the others wait", len(jobs), len(problem.candidates))
    if not jobs:
        return plan_of(problem, [0] * len(problem.candidates), PlanStatus.OPTIMAL, 0.0, NAME)
    known = priced(jobs, problem.nodes, started_s + limit_s / 2, costs=costs)
    first = counts_of(problem, jobs, [job.sizes[c[0]] for job, c in zip(jobs, known.schedules, strict=True)])
    outcome = milp.SolveOutcome()
    if not costs and not known.within(gap):
        formulation = replace(COMPACT, build=partial(horizon.build, without=known.hopeless()))
        outcome = milp.attempt(problem, started_s + limit_s, solver, formulation, known.schedules, gap)
    made = _choose(problem, first, known, outcome, gap)
    name = COSTS if costs else NAME
    return replace(made, planner=name, build_s=outcome.build_s, solve_s=time.monotonic() - started_s - outcome.build_s)


def _choose(problem: Problem, first: list[int], known: Priced, outcome: milp.SolveOutcome, within: float) -> Plan:
    """The better plan; of equal ones, the incumbent."""
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


Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

ROUNDS = 80
"""Most rounds of improving prices."""
SCHEDULES_MAX = 40_000
"""A trainer with more schedules has only those of a few of its sizes here, and then there is no bound."""
CLOSE = 1e-9
"""A plan within this share of the bound is optimal; a smaller gain counts as none."""


@dataclass(frozen=True, slots=True)
class Priced:
    """``schedules[i][t]``: which of its sizes the i-th job has in step t; their ``value``, and the ``bound``.

    ``hopeless()``: choices (i, t, k) of no better plan: with them the job's part of the bound is too small.
    """

    schedules: list[tuple[int, ...]]
    value: float
    bound: float | None
    hopeless: Callable[[], list[tuple[int, int, int]]]

    def within(self, gap: float) -> bool:
        """Whether no plan is better by more than this share of its value."""
        return self.bound is not None and self.bound - self.value <= gap * max(1.0, self.value)


@dataclass(frozen=True, slots=True)
class _Menu:
    """The schedules of jobs that have the same sizes."""

    jobs: list[int]  #: their numbers
    schedules: Ints  #: per step and schedule the size's index
    nodes: Ints  #: per step and schedule the size
    worth: Floats  #: per job and schedule


def priced(jobs: Sequence[HuaweiJob], nodes: int, deadline_s: float, steps: int = STEPS, costs: bool = False) -> Priced:
    """The best plan found, and the least bound. There is a plan: the smallest sizes of all ``jobs`` fit.

    With a price per node and step, each trainer chooses its sizes for all steps by itself (a *schedule*), and their
    total worth, less the prices paid, plus the price of all the pool's nodes is a bound on every plan (Lagrangian
    relaxation of eq. 6). The prices are improved by subgradient steps. A plan follows from them: from its smallest
    sizes on, the trainer that gains most for its price changes to a better schedule that fits, until there is none.

    ``costs``: changes of nodes, in all steps, have the jobs' costs; in the paper they are free.
    """
    menus = _menus(jobs, steps, costs)
    prices, bound = _prices(menus, nodes, deadline_s, steps)
    menu_of = {job: (menu, row) for menu in menus for row, job in enumerate(menu.jobs)}
    chosen = _filled([menu_of[i] for i in range(len(jobs))], nodes, prices)
    value = float(sum(menu_of[i][0].worth[menu_of[i][1], schedule] for i, schedule in enumerate(chosen)))
    schedules = [tuple(menu_of[i][0].schedules[:, schedule].tolist()) for i, schedule in enumerate(chosen)]
    complete = all(menu.schedules.shape[1] == len(jobs[menu.jobs[0]].sizes) ** steps for menu in menus)
    hopeless = partial(_hopeless, menus, prices, bound - value) if complete else list
    return Priced(schedules, value, bound if complete else None, hopeless)


def _menus(jobs: Sequence[HuaweiJob], steps: int, costs: bool) -> list[_Menu]:
    alike: dict[tuple[int, ...], list[int]] = {}
    for i, job in enumerate(jobs):
        alike.setdefault(job.sizes, []).append(i)
    return [_menu(sizes, numbers, jobs, steps, costs) for sizes, numbers in alike.items()]


def _menu(sizes: tuple[int, ...], numbers: list[int], jobs: Sequence[HuaweiJob], steps: int, costs: bool) -> _Menu:
    most = next(n for n in itertools.count(len(sizes), -1) if n <= 1 or n**steps <= SCHEDULES_MAX)
    some = sorted({round(i) for i in np.linspace(0, len(sizes) - 1, most)})
    schedules = np.array(list(itertools.product(some, repeat=steps)), dtype=np.int64).T.copy()
    shares = np.array([jobs[i].shares for i in numbers])
    done = np.zeros((len(numbers), schedules.shape[1]))
    worth = np.zeros_like(done)
    lost = [_lost(jobs[i], schedules) for i in numbers] if costs else None
    for t, step in enumerate(schedules):
        done += shares[:, step]
        if lost is not None:
            done -= [of[t] for of in lost]
        worth += np.minimum(1.0, done)
    return _Menu(numbers, schedules, np.array(sizes, dtype=np.int64)[schedules], worth)


def _lost(job: HuaweiJob, schedules: Ints) -> Floats:
    """The share of its work that each step of each schedule loses by a change of nodes."""
    nodes, speeds = np.array(job.sizes)[schedules], np.array(job.speeds)[schedules]
    before = np.vstack([np.full(schedules.shape[1], job.held), nodes[:-1]])
    rates = np.vstack([np.full(schedules.shape[1], job.held_speed), speeds[:-1]])
    seconds = np.where(nodes > before, job.up_s, np.where(nodes < before, job.down_s, 0.0))
    lost: Floats = seconds * rates / job.demand_s
    return lost


def _prices(menus: Sequence[_Menu], nodes: int, deadline_s: float, steps: int) -> tuple[Floats, float]:
    """The prices with the least bound, and the bound, by subgradient steps towards a value 1% below it."""
    best, bound = np.zeros(steps), float(sum(menu.worth.max(axis=1).sum() for menu in menus))
    prices, reach = np.full(steps, bound / max(1, steps * nodes)), 0.05
    for _ in range(ROUNDS):
        dual, excess = float(prices.sum() * nodes), np.full(steps, -float(nodes))
        for menu in menus:
            net = menu.worth - prices @ menu.nodes
            chosen = net.argmax(axis=1)
            dual += float(net[np.arange(len(chosen)), chosen].sum())
            excess += menu.nodes[:, chosen].sum(axis=1)
        if dual < bound:
            best, bound = prices, dual
        else:
            reach *= 0.8
        if not (length := float(excess @ excess)) or time.monotonic() > deadline_s:
            break
        prices = np.maximum(0.0, prices + (dual - bound + reach * bound) / length * excess)
    return best, bound


def _filled(places: Sequence[tuple[_Menu, int]], nodes: int, prices: Floats) -> list[int]:
    """A schedule of each job, all of which fit."""
    chosen = [0] * len(places)
    left: Ints = nodes - np.sum([menu.nodes[:, 0] for menu, _ in places], axis=0)
    costs = {id(menu): (prices + CLOSE) @ menu.nodes for menu, _ in places}

    def better(i: int) -> tuple[float, int]:
        """The largest gain per price, negated because a heap has the smallest first, and its schedule."""
        (menu, row), now = places[i], chosen[i]
        gain = menu.worth[row] - menu.worth[row, now]
        paid = np.maximum(costs[id(menu)] - costs[id(menu)][now], CLOSE)
        fits = (menu.nodes <= (left + menu.nodes[:, now])[:, None]).all(axis=0)
        ratio = np.where(fits & (gain > CLOSE), gain / paid, 0.0)
        schedule = int(ratio.argmax())
        return -float(ratio[schedule]), schedule

    heap = [(*better(i), i) for i in range(len(places))]
    heapify(heap)
    while heap and heap[0][0] < 0:
        _, schedule, i = heap[0]
        menu = places[i][0]
        more = menu.nodes[:, schedule] - menu.nodes[:, chosen[i]]
        if (more <= left).all():
            chosen[i], left = schedule, left - more
        heapreplace(heap, (*better(i), i))
    return chosen


def _hopeless(menus: Sequence[_Menu], prices: Floats, gap: float) -> list[tuple[int, int, int]]:
    found = []
    for menu in menus:
        net = menu.worth - prices @ menu.nodes
        poor = net < net.max(axis=1, keepdims=True) - gap - CLOSE
        for t, k in itertools.product(range(len(menu.schedules)), range(int(menu.schedules.max()) + 1)):
            without = poor[:, menu.schedules[t] == k].all(axis=1)
            found += [(menu.jobs[row], t, k) for row in np.flatnonzero(without)]
    return found
