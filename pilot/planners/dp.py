"""Planner ``dp``: an exact dynamic programme over the candidates, for replays and as the incumbent of ``milp``.

FreeTrain's objective (eq. 16) depends only on how many nodes each trainer gets, so the problem is a knapsack. With
``best[j][k]`` the best value that candidates j, j+1, … can have on at most k nodes::

    best[j][k] = max over n of  key_j(n) + best[j + 1][k - n],      n in {0} ∪ [min, max], n <= k

If nodes are about to leave (:mod:`pilot.core.pool.pool`), ``best`` has another dimension, how many of those are left,
and a candidate's gains are a row for each number of them that it takes.

The candidates are taken from the last to the first, so that backtracking, from the first, can break ties in submission
order. Floating-point sums of equal value differ in their last bits; therefore gains are turned into integers first:

- the unit is a decimal one, 10^-12 of the largest gain's power of ten; gains that differ by less are ties. Numbers that
  people write are exact in it. The *differences* between neighbouring counts of a curve are rounded and summed up, so
  that equal slopes stay exactly equal;
- a key is ``units * (candidates + 1) - (1 if the count changes)``: more value first, fewer changes second. Among
  equal keys, backtracking takes the most nodes for the earlier candidate.
"""

from __future__ import annotations

import math
import time
from dataclasses import replace
from functools import lru_cache

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from pilot.core.curves.curve import Curve
from pilot.core.plan.problem import Candidate, Plan, PlanStatus, Problem
from pilot.planners import prices
from pilot.planners.choice import NO_GAIN, plan_of

_DIGITS = 12
"""Decimal digits of the largest gain that count."""
_KEY_DIGITS = 18
"""Decimal digits of the sum of all keys: it must fit 64 bits."""
_NEVER = -(2**62)
ADDITIONS_PER_S = 5e8
"""What a core manages at least, measured at 4,600 to 20,000 nodes; a slower one is stopped by the time limit."""
_BLOCK = 512
"""Node counts that are handled together: their table fits the processor's cache."""

_NOT_ALLOWED = -(2**61)
"""The key of a count that is not allowed: less than any sum of keys, and two of them fit 64 bits."""

Keys = tuple[list[NDArray[np.int64]], int]
"""A candidate's keys for counts 0, smallest, smallest + 1, …, by how many ending nodes it takes beside them; that
smallest count."""

Gain = tuple[Curve, int, int, int, float, float, float, tuple[int, ...]]
"""The arguments of a candidate's gains: curve, current, smallest and largest count, costs, ``t_fwd_s``, sizes."""


def plan(problem: Problem, limit_s: float = math.inf) -> Plan:
    """The optimal plan; the one by prices if ``limit_s`` does not suffice, or there are several types."""
    started_s = time.monotonic()
    made = incumbent(problem, started_s + limit_s)
    return replace(made, solve_s=time.monotonic() - started_s)


def incumbent(problem: Problem, deadline_s: float) -> Plan:
    """The optimal plan; where that would take longer than until ``deadline_s``, or there are several types, the one by
    prices, at once."""
    made = None
    if not problem.types and additions(problem) <= ADDITIONS_PER_S * (deadline_s - time.monotonic()):
        made = optimum(problem, deadline_s)
    return made or prices.plan(problem, "dp")


def additions(problem: Problem) -> float:
    """How many :func:`optimum` does at most."""
    wide, late = sum(min(c.max_nodes, problem.nodes) + 1 for c in problem.candidates), problem.ending + 1
    return min(problem.nodes + 1, wide) * wide * late * (late + 1) / 2


def optimum(problem: Problem, deadline_s: float = math.inf) -> Plan | None:
    """The optimal plan, ties broken; None if the monotonic clock passes ``deadline_s``."""
    keys = keys_of(problem)
    best = [[np.zeros(1, dtype=np.int64)] * (problem.ending + 1)]
    for rows, smallest in reversed(keys):
        if time.monotonic() > deadline_s:
            return None
        after = best[-1]
        best.append([_best_of(after[: late + 1], rows, smallest, problem.nodes) for late in range(len(after))])
    best.reverse()
    counts, ending = _backtrack(best, keys, problem.nodes)
    return plan_of(problem, counts, PlanStatus.OPTIMAL, 0.0, "dp", ending)


def keys_of(problem: Problem) -> list[Keys]:
    """Each candidate's keys."""
    gains = [_gain(candidate, problem, problem.nodes) for candidate in problem.candidates]
    peak = max((_peak(_gain(c, problem, problem.nodes + problem.ending)) for c in problem.candidates), default=0.0)
    factor = len(gains) + 1
    digits = min(_DIGITS, math.floor(_KEY_DIGITS - 2 * math.log10(factor)))
    unit = 10.0 ** (math.ceil(math.log10(max(peak, NO_GAIN))) - digits)
    return [(_rows(c, problem, gain, unit, factor), gain[2]) for c, gain in zip(problem.candidates, gains, strict=True)]


def _rows(c: Candidate, problem: Problem, gain: Gain, unit: float, factor: int) -> list[NDArray[np.int64]]:
    """Keys by the count of nodes that stay, if it takes none of the ending nodes, one of them, …, as long as they gain
    something."""
    rows = [_key(gain, unit, factor)]
    if c.must_run:
        rows[0] = np.concatenate(([_NOT_ALLOWED], rows[0][1:]))
    for late in range(1, problem.ending + 1):
        row = np.full(len(rows[0]), _NOT_ALLOWED)
        for place, stays in enumerate((0, *range(gain[2], gain[3] + 1))):
            if stays >= c.current_nodes and c.allows(stays) and c.allows(stays + late):
                value = problem.gain(c, stays + late, late)
                if value > problem.gain(c, stays):
                    row[place] = round(value / unit) * factor - 1
        rows.append(row)
    while (rows[-1] == _NOT_ALLOWED).all():
        rows.pop()
    return rows


def _gain(candidate: Candidate, problem: Problem, most: int) -> Gain:
    c, largest = candidate, min(candidate.max_nodes, most)
    return c.value, c.current_nodes, c.min_nodes, largest, c.rescale_up_s, c.rescale_down_s, problem.t_fwd_s, c.sizes


@lru_cache(maxsize=128)
def _values(curve: Curve, largest: int) -> NDArray[np.float64]:
    """:meth:`Curve.at` for 0, 1, …, ``largest`` (eq. 12)."""
    counts, last = np.arange(largest + 1), curve.nodes[-1]
    return np.where(counts > last, curve.per_s[-1] * counts / last, np.interp(counts, curve.nodes, curve.per_s))


def _costs(gain: Gain) -> tuple[float, float]:
    """The costs of a rescale up and of one down: the value at the current count for its duration (eqs 13, 16)."""
    curve, current, smallest, _, up_s, down_s, *_ = gain
    held = curve.at(current) if current >= smallest else 0.0
    return held * up_s, held * down_s


@lru_cache(maxsize=128)
def _peak(gain: Gain) -> float:
    """The largest magnitude of the terms of a gain."""
    curve, largest, t_fwd_s = gain[0], gain[3], gain[6]
    return max(t_fwd_s * float(_values(curve, largest).max()), *_costs(gain))


@lru_cache(maxsize=128)
def _key(gain: Gain, unit: float, factor: int) -> NDArray[np.int64]:
    """The keys for counts 0, smallest, …, largest: gains in units times ``factor``, less 1 for a change."""
    curve, current, smallest, largest, _, _, t_fwd_s, sizes = gain
    up, down = (round(cost / unit) * factor + 1 for cost in _costs(gain))
    steps = np.rint(np.diff(t_fwd_s * _values(curve, largest), prepend=0.0) / unit).astype(np.int64)
    key = np.cumsum(steps) * factor
    key[:current] -= down
    key[current + 1 :] -= up
    if sizes:
        key[1:][~np.isin(np.arange(1, largest + 1), sizes)] = _NOT_ALLOWED
    return np.concatenate((key[:1], key[smallest:]))


def extend(best: NDArray[np.int64], key: NDArray[np.int64], smallest: int, nodes: int) -> NDArray[np.int64]:
    """``best[j]`` from ``best[j + 1]``. Beyond their ends, where all have their largest counts, both are level."""
    if len(key) == 1:
        alone: NDArray[np.int64] = np.maximum(best + key[0], _NOT_ALLOWED)
        return alone
    largest = smallest + len(key) - 2
    width = min(nodes + 1, len(best) + largest)
    padded = np.concatenate((np.full(largest, _NEVER), best, np.full(width - len(best), best[-1])))
    step = padded.itemsize
    rest = as_strided(padded[largest - smallest :], (len(key) - 1, width), (-step, step), writeable=False)
    extended: NDArray[np.int64] = padded[largest:] + key[0]
    for start in range(0, width, _BLOCK):
        block = slice(start, start + _BLOCK)
        extended[block] = np.maximum(extended[block], (rest[:, block] + key[1:, None]).max(axis=0))
    return np.maximum(extended, _NOT_ALLOWED, out=extended)  # sums of several that are not allowed would overflow


def _best_of(
    after: list[NDArray[np.int64]], rows: list[NDArray[np.int64]], smallest: int, nodes: int
) -> NDArray[np.int64]:
    """``best[j]`` with at most ``len(after) - 1`` ending nodes; ``after`` is ``best[j + 1]`` by their number."""
    taken = [extend(rest, row, smallest, nodes) for rest, row in zip(reversed(after), rows, strict=False)]
    width = max(map(len, taken))
    level = [np.concatenate((row, np.full(width - len(row), row[-1]))) for row in taken]
    highest: NDArray[np.int64] = np.max(level, axis=0)
    return highest


def _backtrack(best: list[list[NDArray[np.int64]]], keys: list[Keys], nodes: int) -> tuple[list[int], list[int]]:
    """One optimal count per candidate, from the first, and how many of them are ending nodes; among equal ones the
    fewest of those, then the largest."""
    counts: list[int] = []
    ending: list[int] = []
    left = len(best[0]) - 1
    for here, after, (rows, smallest) in zip(best, best[1:], keys, strict=False):
        wanted = here[left][min(nodes, len(here[left]) - 1)]
        found = (_stays(after[left - late], row, smallest, nodes, wanted) for late, row in enumerate(rows[: left + 1]))
        late, stays = next((late, stays) for late, stays in enumerate(found) if stays is not None)
        counts.append(stays + late)
        ending.append(late)
        nodes, left = nodes - stays, left - late
    return counts, ending


def _stays(after: NDArray[np.int64], row: NDArray[np.int64], smallest: int, nodes: int, wanted: np.int64) -> int | None:
    """The largest count in ``row`` that leads to the value ``wanted``; None: there is none."""
    reachable = min(len(row) - 1, max(0, nodes - smallest + 1))
    rest = np.minimum(nodes - smallest - np.arange(reachable), len(after) - 1)
    ties = np.flatnonzero(after[rest] + row[1 : reachable + 1] == wanted)
    if len(ties):
        return smallest + int(ties[-1])
    return 0 if after[min(nodes, len(after) - 1)] + row[0] == wanted else None
