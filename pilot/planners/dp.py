"""Planner ``dp``: an exact dynamic programme over the candidates, for replays and as the incumbent of ``milp``.

FreeTrain's objective (eq. 16) depends only on how many nodes each trainer gets, so the problem is a knapsack. With
``best[j][k]`` the best value that candidates j, j+1, … can have on at most k nodes::

    best[j][k] = max over n of  key_j(n) + best[j + 1][k - n],      n in {0} ∪ [min, max], n <= k

The candidates are taken from the last to the first, so that the way back, from the first, can settle ties in submission
order. Floating-point sums of equal value differ in their last bits; therefore gains are turned into integers first:

- the unit is a decimal one, 10^-12 of the largest gain's power of ten; what differs by less is a tie. Numbers that
  people write are exact in it. Of a curve the *differences* between neighbouring counts are rounded and summed up, so
  that equal slopes stay exactly equal whatever they are;
- a key is ``units * (candidates + 1) - (1 where the count changes)``: more value first, fewer changes second. Among
  equal keys the way back takes the most nodes for the earlier candidate.
"""

from __future__ import annotations

import math
import time
from dataclasses import replace
from functools import lru_cache

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from pilot.core.curve import Curve
from pilot.core.problem import Candidate, Plan, PlanStatus, Problem
from pilot.planners.choice import best_known, plan_of
from pilot.planners.pieces import NO_GAIN

_DIGITS = 12
"""Decimal digits of the largest gain that count."""
_KEY_DIGITS = 18
"""Decimal digits of the sum of all keys: it must fit 64 bits."""
_NEVER = -(2**62)
_BLOCK = 512
"""Node counts that are handled together: their table fits the processor's cache."""

_NOT_ALLOWED = -(2**61)
"""The key of a count that is not allowed: less than any sum of keys, and two of them fit 64 bits."""

Gain = tuple[Curve, int, int, int, float, float, float, tuple[int, ...]]
"""What a candidate's gains depend on: curve, current, smallest and largest count, costs, ``t_fwd_s``, sizes."""


def plan(problem: Problem, limit_s: float = math.inf) -> Plan:
    """The optimal plan; the allocation as it is where ``limit_s`` does not suffice."""
    started_s = time.monotonic()
    counts = best_counts(problem, started_s + limit_s)
    if counts is None:
        made = best_known(problem, [], None, "dp")
    else:
        made = plan_of(problem, counts, PlanStatus.OPTIMAL, 0.0, "dp")
    return replace(made, solve_s=time.monotonic() - started_s)


def best_counts(problem: Problem, deadline_s: float = math.inf) -> list[int] | None:
    """The optimal counts in the candidates' order, ties settled; None if the monotonic clock passes ``deadline_s``."""
    keys = _keys(problem)
    best = [np.zeros(1, dtype=np.int64)]
    for key, smallest in reversed(keys):
        if time.monotonic() > deadline_s:
            return None
        best.append(_extend(best[-1], key, smallest, problem.nodes))
    best.reverse()
    return _way_back(best, keys, problem.nodes)


def _keys(problem: Problem) -> list[tuple[NDArray[np.int64], int]]:
    """Each candidate's keys for counts 0, smallest, smallest + 1, …, and that smallest count."""
    gains = [_gain(candidate, problem) for candidate in problem.candidates]
    peak = max((_peak(gain) for gain in gains), default=0.0)
    factor = len(gains) + 1
    digits = min(_DIGITS, math.floor(_KEY_DIGITS - 2 * math.log10(factor)))
    unit = 10.0 ** (math.ceil(math.log10(max(peak, NO_GAIN))) - digits)
    return [(_key(gain, unit, factor), gain[2]) for gain in gains]


def _gain(candidate: Candidate, problem: Problem) -> Gain:
    c, largest = candidate, min(candidate.max_nodes, problem.nodes)
    return c.value, c.current_nodes, c.min_nodes, largest, c.rescale_up_s, c.rescale_down_s, problem.t_fwd_s, c.sizes


@lru_cache(maxsize=1024)
def _values(curve: Curve, largest: int) -> NDArray[np.float64]:
    """:meth:`Curve.at` for 0, 1, …, ``largest`` (eq. 12)."""
    counts, last = np.arange(largest + 1), curve.nodes[-1]
    beyond = curve.per_s[-1] * counts / last
    return np.where(counts > last, beyond, np.interp(counts, curve.nodes, curve.per_s))


def _costs(gain: Gain) -> tuple[float, float]:
    """What a rescale up and one down cost: the value at the current count for as long as it takes (eqs 13, 16)."""
    curve, current, smallest, _, up_s, down_s, *_ = gain
    held = curve.at(current) if current >= smallest else 0.0
    return held * up_s, held * down_s


@lru_cache(maxsize=1024)
def _peak(gain: Gain) -> float:
    """The largest magnitude of what adds up to a gain."""
    curve, largest, t_fwd_s = gain[0], gain[3], gain[6]
    return max(t_fwd_s * float(_values(curve, largest).max()), *_costs(gain))


@lru_cache(maxsize=1024)
def _key(gain: Gain, unit: float, factor: int) -> NDArray[np.int64]:
    """What is compared, for counts 0, smallest, …, largest: gains in units times ``factor``, less 1 for a change."""
    curve, current, smallest, largest, _, _, t_fwd_s, sizes = gain
    up, down = (round(cost / unit) * factor + 1 for cost in _costs(gain))
    steps = np.rint(np.diff(t_fwd_s * _values(curve, largest), prepend=0.0) / unit).astype(np.int64)
    key = np.cumsum(steps) * factor
    key[:current] -= down
    key[current + 1 :] -= up
    if sizes:
        key[1:][~np.isin(np.arange(1, largest + 1), sizes)] = _NOT_ALLOWED
    return np.concatenate((key[:1], key[smallest:]))


def _extend(best: NDArray[np.int64], key: NDArray[np.int64], smallest: int, nodes: int) -> NDArray[np.int64]:
    """``best[j]`` from ``best[j + 1]``. Beyond their ends, where all have their largest counts, both are level."""
    if len(key) == 1:
        alone: NDArray[np.int64] = best + key[0]
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
    return extended


def _way_back(best: list[NDArray[np.int64]], keys: list[tuple[NDArray[np.int64], int]], nodes: int) -> list[int]:
    """One optimal count per candidate, from the first; among equal ones the largest."""
    counts: list[int] = []
    for here, after, (key, smallest) in zip(best, best[1:], keys, strict=False):
        reachable = min(len(key) - 1, max(0, nodes - smallest + 1))
        rest = np.minimum(nodes - smallest - np.arange(reachable), len(after) - 1)
        wanted = here[min(nodes, len(here) - 1)]
        ties = np.flatnonzero(after[rest] + key[1 : reachable + 1] == wanted)
        counts.append(smallest + int(ties[-1]) if len(ties) else 0)
        nodes -= counts[-1]
    return counts
