"""How many trainers share the pool: the shortest prefix of the queue that is worth nearly as much as all of it.

Few trainers leave nodes idle, or run on many nodes each, at a low efficiency; of many, each takes long. The prefix is
worth :attr:`Problem.queue_share` of the whole queue. The worth is the optimum of eq. 16 if all trainers began from 0
nodes now, and each start was charged its R_up (eq. 16 itself charges a start from 0 nodes nothing). So the prefix
depends on the pool and the queue, not on who runs: else a pool whose nodes come one by one would never be worth another
trainer. The dynamic programme of :mod:`pilot.planners.dp`, run forwards, values all prefixes in one pass.
Nodes of several types count alike in the worth of a prefix; the plan for it tells them apart.

An idle node is of use to nobody: if the next that waits could start on those left over, the prefix is longer. Trainers
that hold nodes, that must run, or that are pinned, are always planned for: only the objective takes their nodes, which
charges the rescale.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from pilot.core.curves.curve import Curve
from pilot.core.ids import TrainerId
from pilot.core.plan.problem import Candidate, Plan, PlanStatus, Problem
from pilot.planners import dp

LARGEST_CHARGE = 0.5
"""A start is charged at most this share of the forward-looking time: it is always worth something."""

LIMIT_S = 1.0
"""If it would take longer to find the prefix, all are planned for."""

AGAIN_S = 2.0
"""No other plan is made after this time: a pool kills a planner that takes 3 s more than its limit."""

_STEP = 32
"""Prefixes are valued for a multiple of this many nodes."""
_ANY = TrainerId("")


def plan(problem: Problem, planner: Callable[[Problem], Plan]) -> Plan:
    """The plan of ``planner`` for the prefix of the queue and all that hold nodes. If that leaves nodes over, it is
    made again, each time for twice as many more: in a few plans, so that the time does not decide."""
    started_s = time.monotonic()
    quick = dp.additions(replace(problem, ending=0)) <= LIMIT_S * dp.ADDITIONS_PER_S
    length = _prefix(problem) if quick else len(problem.candidates)
    made, more = _plan_for(problem, length, planner), 1
    while _could_start(problem, length, made) and time.monotonic() < started_s + AGAIN_S:
        length, more = length + more, 2 * more
        made = _plan_for(problem, length, planner)
    return replace(made, build_s=time.monotonic() - started_s - made.solve_s)


def _plan_for(problem: Problem, length: int, planner: Callable[[Problem], Plan]) -> Plan:
    first, others = problem.candidates[:length], problem.candidates[length:]
    made = planner(replace(problem, candidates=(*first, *(c for c in others if not _waits(c)))))
    return replace(made, first_out=next((c.trainer for c in others if _waits(c)), None))


def _waits(candidate: Candidate) -> bool:
    return not (candidate.current_nodes or candidate.must_run) and candidate.pin is None


def _could_start(problem: Problem, length: int, made: Plan) -> bool:
    """Whether one that was left out could start on the nodes that the plan leaves over."""
    if made.first_out is None or made.status is PlanStatus.KEPT:
        return False
    left_over = problem.nodes - sum(made.as_dict().values()) + sum(dict(made.ending).values())
    used = map(sum, zip(*(nodes for _, nodes in made.by_type), strict=True))
    of_type = tuple(there - nodes for there, nodes in zip(problem.types_nodes, used, strict=False))
    room = ((c, c.usable(of_type) if of_type else left_over) for c in problem.candidates[length:])
    return any(_waits(c) and c.min_nodes <= nodes for c, nodes in room)


def _prefix(problem: Problem) -> int:
    """How many candidates the prefix has. Nodes that leave soon count as the others: someone may start on them."""
    worths, left_over = _worths(replace(problem, nodes=problem.nodes + problem.ending))
    enough = problem.queue_share * worths[-1]
    length = next(k for k, worth in enumerate(worths) if worth >= enough)
    while any(c.min_nodes <= left_over[length] for c in problem.candidates[length:]):
        length += 1
    return length


def _worths(problem: Problem) -> tuple[list[int], list[int]]:
    """What each prefix is worth, from the empty one on, and how many nodes it leaves over."""
    anew = tuple(_anew(candidate, problem.t_fwd_s) for candidate in problem.candidates)
    step = max(_STEP, 1 << problem.nodes.bit_length() >> 3)
    prefixes = _prefixes(anew, -(-problem.nodes // step) * step, problem.t_fwd_s)
    ends = [min(problem.nodes, len(best) - 1) for best in prefixes]
    worths = [int(best[end]) for best, end in zip(prefixes, ends, strict=True)]
    used = (int(np.searchsorted(best[:end], best[end])) for best, end in zip(prefixes, ends, strict=True))
    return worths, [problem.nodes - nodes for nodes in used]


@lru_cache(maxsize=2)
def _prefixes(candidates: tuple[Candidate, ...], nodes: int, t_fwd_s: float) -> tuple[NDArray[np.int64], ...]:
    """For each prefix, from the empty one on, the best value on at most 0, 1, …, ``nodes`` nodes, until it is level; a
    pool that gains or loses nodes does not change it."""
    found = [np.zeros(1, dtype=np.int64)]
    for (row,), smallest in dp.keys_of(Problem(nodes, t_fwd_s, candidates)):
        found.append(dp.extend(found[-1], row, smallest, nodes))
    return tuple(found)


def _anew(c: Candidate, t_fwd_s: float) -> Candidate:
    """Any trainer like this one, without nodes, that pays for its start."""
    return Candidate(_ANY, 0, c.min_nodes, c.max_nodes, _charged(c.value, c.rescale_up_s, t_fwd_s), 0.0, 0.0, c.sizes)


@lru_cache(maxsize=128)
def _charged(value: Curve, rescale_up_s: float, t_fwd_s: float) -> Curve:
    """``value`` less what is not done while the trainer starts, as a rate over the forward-looking time."""
    return value.scaled(1.0 - min(rescale_up_s / t_fwd_s, LARGEST_CHARGE))
