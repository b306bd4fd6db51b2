"""Plans for nodes of several types, by a price for each type (Lagrange).

At given prices each trainer decides alone: it takes the nodes that gain most beyond their price. The best prices, and
so the lowest bound of all plans, are where as many nodes are asked for as there are. If nodes could be divided, a
trainer's best nodes would always be a vertex: all but two of its numbers x_k are at the ends of a region in which the
rescale costs the same (0, held, or all that there are), and the others follow from a count (its minimum, maximum or a
size) and from an effective number at which its curve bends. The vertices of all trainers are written down once
(:func:`_vertices`); then the bound is a convex function of few prices, which Newton's method minimises after it was
smoothed (each maximum as the logarithm of a sum of exponentials), less and less so.

A plan begins with those that must run, or are pinned. Then trainers take what gains most beyond the price: a vertex
rounded to whole nodes, or a few nodes more, fewer or others than they have; at the end, pairs of such changes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, permutations, product

import numpy as np
from numpy.typing import NDArray

from pilot.core.plan.placing import place
from pilot.core.plan.problem import Candidate, Plan, PlanStatus, Problem
from pilot.planners.choice import best_known, plan_by_type

Whole = NDArray[np.int64]
Values = NDArray[np.float64]

MOST_BENDS = 16
"""Of a curve with more bends, some are left out in the bound, and what it is worth more there is added."""
_SMOOTHEST, _SHARPEST = 0.25, 1e-5  #: how far maxima are smoothed, as a share of the mean trainer's gain
_FAR = 20.0  #: so many times that below the best column, others do not count
_PRIMES = np.array([p for p in range(2, 100) if all(p % d for d in range(2, p))])
_NEWTON_STEPS = 8
_NEAREST = 16  #: so many vertices of each trainer are rounded
_PAIRS = (64, 256)  #: so many changes that take nodes are tried together with so many that give some back
_ROUNDS = 400
_RIDGE = 1e-9  #: prices stay finite where those that must run take all nodes
_CLOSE = 1e-9


@dataclass(frozen=True, slots=True)
class _Trainers:
    """All candidates' numbers, one row each."""

    t_fwd_s: float
    speeds: Values
    held: Whole
    most: Whole  #: x_jk is at most this
    allowed: NDArray[np.bool_]  #: by the count of nodes
    one_type: NDArray[np.bool_]
    min_nodes: Whole
    bends: Values  #: of their curves, with the values there and the slopes after them; nan beyond the last one
    values: Values
    slopes: Values
    costs: Values  #: of a rescale up, and of one down

    def gains(self, owner: Whole, nodes: Values | Whole) -> Values:
        """:meth:`Candidate.gain_on` of each row of ``nodes``, for the trainer ``owner``; whole nodes or not."""
        effective = (self.speeds[owner] * nodes).sum(axis=1)
        piece = np.maximum((self.bends[owner] <= effective[:, None]).sum(axis=1) - 1, 0)
        value: Values = self.values[owner, piece] + self.slopes[owner, piece] * (effective - self.bends[owner, piece])
        value[nodes.sum(axis=1) < self.min_nodes[owner] - _CLOSE] = 0.0
        change = nodes - self.held[owner]
        up, down = (change > _CLOSE).any(axis=1), (change < -_CLOSE).any(axis=1)
        gains: Values = self.t_fwd_s * value - np.maximum(up * self.costs[owner, 0], down * self.costs[owner, 1])
        return gains

    def permits(self, owner: Whole, nodes: Whole) -> NDArray[np.bool_]:
        """:meth:`Candidate.allows_on` of each row, if there were no other trainers."""
        inside: NDArray[np.bool_] = np.all((nodes >= 0) & (nodes <= self.most[owner]), axis=1)
        inside &= np.where(self.one_type[owner], (nodes > 0).sum(axis=1) <= 1, True)
        inside[inside] = self.allowed[owner[inside], nodes[inside].sum(axis=1)]
        return inside


@dataclass(frozen=True, slots=True)
class _Columns:
    """What trainers may have, by trainer: nodes and gain."""

    owner: Whole
    nodes: Values
    gains: Values
    firsts: Whole  #: the first row of each trainer


def plan(problem: Problem, planner: str) -> Plan:
    """The plan by prices, or the current allocation if that is better."""
    if not problem.candidates:
        return plan_by_type(problem, [], PlanStatus.OPTIMAL, 0.0, planner)
    problem, least = _with_those_that_fit(problem)
    trainers = _trainers(problem)
    columns, lacks = _columns(trainers, problem)
    prices, bound = _best_prices(columns, np.maximum(problem.types_nodes, 1.0))  # of none, the price could be any
    there = np.array(problem.types_nodes)
    nodes = _improved(trainers, least, there, _rounded(trainers, columns, prices), prices)
    made = plan_by_type(problem, [tuple(row) for row in nodes.tolist()], PlanStatus.INCUMBENT, None, planner)
    return best_known(problem, [made], bound + lacks, planner)


def _trainers(problem: Problem) -> _Trainers:
    cs, there = problem.candidates, np.array(problem.types_nodes, dtype=np.int64)
    most_of_all = np.array([c.max_nodes if c.pin is None else c.pin for c in cs], dtype=np.int64)
    allowed = np.zeros((len(cs), max(problem.nodes, *most_of_all) + 1), dtype=np.bool_)
    for row, c in zip(allowed, cs, strict=True):
        row[slice(c.min_nodes, c.max_nodes + 1) if c.pin is None and not c.sizes else _counts(c)] = True
        row[0] = c.allows(0)
    speeds = np.array([c.speeds for c in cs], dtype=float)
    return _Trainers(
        problem.t_fwd_s,
        speeds,
        held=np.array([c.held for c in cs], dtype=np.int64),
        most=np.where(speeds > 0, np.minimum(there, most_of_all[:, None]), 0),
        allowed=allowed,
        one_type=np.array([c.one_type for c in cs]),
        min_nodes=np.array([c.min_nodes for c in cs]),
        bends=_padded([c.value.nodes for c in cs], math.inf),
        values=_padded([c.value.per_s for c in cs], 0.0),
        slopes=_padded([_slopes(c) for c in cs], 0.0),
        costs=np.array([np.multiply(c.value_on(c.held), (c.rescale_up_s, c.rescale_down_s)) for c in cs]),
    )


def _counts(c: Candidate) -> list[int]:
    """The counts at which its region ends: all allowed ones, if these are few."""
    return [c.pin] if c.pin is not None else [n for n in c.sizes or (c.min_nodes, c.max_nodes) if c.allows(n)]


def _slopes(c: Candidate) -> list[float]:
    nodes, per_s = c.value.nodes, c.value.per_s
    return [*(np.diff(per_s) / np.diff(nodes)).tolist(), per_s[-1] / nodes[-1]]


def _padded(rows: Sequence[Sequence[float]], filler: float) -> Values:
    longest = max(map(len, rows))
    return np.array([[*row, *[filler] * (longest - len(row))] for row in rows], dtype=float)


def _columns(trainers: _Trainers, problem: Problem) -> tuple[_Columns, float]:
    """The vertices of all trainers, and how much the bound must be raised for bends that were left out."""
    t, none = trainers, np.zeros_like(trainers.held)
    counts = _padded([_counts(c) for c in problem.candidates], math.nan)
    thinned = [_thinned(c, t.t_fwd_s) for c in problem.candidates]
    bends = _padded([nodes for nodes, _ in thinned], math.nan)
    up_costs_more = (t.costs[:, 0] >= t.costs[:, 1])[:, None]
    one_way = np.where(up_costs_more, none, t.held), np.where(up_costs_more, np.minimum(t.held, t.most), t.most)
    blocks: list[Values | Whole] = [none[:, None, :], t.held[:, None, :]]
    owners, found = list[Whole](), list[Values]()
    few = np.array([c.pin is not None or bool(c.sizes) for c in problem.candidates])
    for low, high in ((none, t.most), one_way):
        blocks += _vertices(low, high, counts, bends, t.speeds)
    for block in blocks:
        owner = np.repeat(np.arange(len(block)), block.shape[1])
        nodes = block.reshape(-1, block.shape[2]).astype(float)
        keep = _inside(t, owner, nodes, counts, few)
        owners.append(owner[keep])
        found.append(nodes[keep])
    return _sorted(t, np.concatenate(owners), np.concatenate(found)), sum(lack for _, lack in thinned)


def _inside(t: _Trainers, owner: Whole, nodes: Values, counts: Values, few: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Whether these nodes, whole or not, are no more than there are, and of an allowed number."""
    with np.errstate(invalid="ignore"):
        inside: NDArray[np.bool_] = np.all((nodes >= -_CLOSE) & (nodes <= t.most[owner] + _CLOSE), axis=1)
    inside &= np.where(t.one_type[owner], (nodes > _CLOSE).sum(axis=1) <= 1, True)
    total, ends = nodes[inside].sum(axis=1), counts[owner[inside]]
    between = (total >= np.nanmin(ends, axis=1) - _CLOSE) & (total <= np.nanmax(ends, axis=1) + _CLOSE)
    exactly = (np.abs(ends - total[:, None]) <= _CLOSE).any(axis=1)
    nothing = (total <= _CLOSE) & t.allowed[owner[inside], 0]
    inside[inside] = nothing | np.where(few[owner[inside]], exactly, between)
    return inside


def _thinned(c: Candidate, t_fwd_s: float) -> tuple[list[float], float]:
    """Where its curve bends, at most :data:`MOST_BENDS`, and what others may add to its gain."""
    nodes, per_s = np.array(c.value.nodes), np.array(c.value.per_s)
    if len(nodes) <= MOST_BENDS:
        return list(c.value.nodes), 0.0
    some = np.unique(np.linspace(0, len(nodes) - 1, MOST_BENDS).round().astype(int))
    differs = per_s - np.interp(nodes, nodes[some], per_s[some])
    return nodes[some].tolist(), t_fwd_s * float(differs.max() - differs.min())


def _vertices(low: Whole, high: Whole, counts: Values, bends: Values, speeds: Values) -> Iterator[Values]:
    """Blocks (trainer, number, type) of the vertices of ``low <= x <= high``, cut at ``counts`` and ``bends``; some lie
    outside."""
    types = range(low.shape[1])
    for corner in product((False, True), repeat=len(types)):
        at = np.where(corner, high, low).astype(float)
        yield at[:, None, :]
        free = [k for k in types if not corner[k]]
        for k in free:
            for ends, weight in ((counts, np.ones_like(speeds)), (bends, speeds)):
                block = np.repeat(at[:, None, :], ends.shape[1], axis=1)
                rest = (weight * at).sum(axis=1) - weight[:, k] * at[:, k]
                block[:, :, k] = _ratio(ends - rest[:, None], weight[:, k, None])
                yield block
        for k, other in combinations(free, 2):
            block = np.repeat(at[:, None, :], counts.shape[1] * bends.shape[1], axis=1)
            count, effective = at.sum(axis=1) - at[:, k] - at[:, other], (speeds * at).sum(axis=1)
            effective -= speeds[:, k] * at[:, k] + speeds[:, other] * at[:, other]
            n = np.repeat(counts - count[:, None], bends.shape[1], axis=1)
            e = np.tile(bends - effective[:, None], (1, counts.shape[1]))
            faster = speeds[:, k, None] - speeds[:, other, None]
            block[:, :, k] = _ratio(e - speeds[:, other, None] * n, faster)
            block[:, :, other] = n - block[:, :, k]
            yield block


def _ratio(above: Values, below: Values) -> Values:
    """Their ratio; nan where ``below`` is 0."""
    return above / np.where(below == 0, np.nan, below)


def _sorted(t: _Trainers, owner: Whole, nodes: Values) -> _Columns:
    """The columns of all trainers, by trainer, each once, without those that are worth less than nothing. One that must
    run, but cannot, has nothing."""
    everyone = np.arange(len(t.held))
    idle = t.gains(everyone, np.zeros_like(t.held))
    gains = t.gains(owner, nodes)
    keep = (gains > idle[owner]) | ~t.allowed[owner, 0] | (nodes.sum(axis=1) <= _CLOSE)
    without = np.setdiff1d(everyone, owner[keep])
    owner = np.concatenate((owner[keep], without))
    nodes = np.concatenate((nodes[keep], np.zeros((len(without), nodes.shape[1]))))
    gains = np.concatenate((gains[keep], idle[without]))
    spread = nodes @ np.sqrt(_PRIMES[: nodes.shape[1]])  # differs between columns that differ
    _, once = np.unique((owner * (1.0 + spread.max()) + spread).round(7), return_index=True)
    return _by_owner(owner[once], nodes[once], gains[once])


def _by_owner(owner: Whole, nodes: Values, gains: Values) -> _Columns:
    return _Columns(owner, nodes, gains, np.searchsorted(owner, np.arange(owner[-1] + 1)))


def _best_prices(columns: _Columns, there: Values) -> tuple[Values, float]:
    """The prices at which the bound is lowest, and the bound."""
    best, none = np.maximum.reduceat(columns.gains, columns.firsts), np.minimum.reduceat(columns.gains, columns.firsts)
    scale = float((best - none).mean()) or 1.0
    scaled = replace(columns, gains=columns.gains / scale)
    prices = np.full(len(there), 0.5 * len(columns.firsts) / max(1.0, there.sum()))
    lowest, at, sharp = math.inf, prices, _SMOOTHEST
    while sharp >= _SHARPEST:
        prices = _newton(_near(scaled, prices, _FAR * sharp), there, prices, sharp)
        bound = float(_best(scaled, prices)[1].sum() + prices @ there)
        if bound < lowest:
            lowest, at = bound, prices
        sharp *= 0.2
    return at * scale, lowest * scale


def _best(columns: _Columns, prices: Values) -> tuple[Values, Values]:
    """What each column is worth beyond the price, and what the best one of each trainer is."""
    surplus = columns.gains - columns.nodes @ prices
    return surplus, np.maximum.reduceat(surplus, columns.firsts)


def _near(columns: _Columns, prices: Values, margin: float) -> _Columns:
    """The columns that are worth at most ``margin`` less than the best one of their trainer."""
    surplus, best = _best(columns, prices)
    near = surplus >= best[columns.owner] - margin
    return _by_owner(columns.owner[near], columns.nodes[near], columns.gains[near])


def _newton(columns: _Columns, there: Values, prices: Values, sharp: float) -> Values:
    """The prices at which the smoothed bound is lowest. They stay positive by a barrier, ``-sharp log(price)``."""

    def smoothed(prices: Values) -> tuple[float, Values]:
        surplus, best = _best(columns, prices)
        weights = np.exp((surplus - best[columns.owner]) / sharp)
        total = np.add.reduceat(weights, columns.firsts)
        logs = np.log(total).sum() - np.log(prices).sum()
        return float(best.sum() + prices @ there + sharp * logs), weights / total[columns.owner]

    value, weights = smoothed(prices)
    for _ in range(_NEWTON_STEPS):
        asked = weights[:, None] * columns.nodes
        mean = np.add.reduceat(asked, columns.firsts)
        bend = (columns.nodes.T @ asked - mean.T @ mean) / sharp + np.diag(sharp / prices**2 + _RIDGE)
        slope = there - mean.sum(axis=0) - sharp / prices
        step = -np.linalg.solve(bend, slope)
        if -(slope @ step) < 1e-3 * sharp:
            break
        length, before = min(1.0, 0.9 / max(1e-300, float((-step / prices).max()))), value
        value, weights = smoothed(prices + length * step)
        while value > before and length > 1e-9:
            length *= 0.5
            value, weights = smoothed(prices + length * step)
        prices = prices + length * step
    return prices


def _rounded(t: _Trainers, columns: _Columns, prices: Values) -> tuple[Whole, Whole]:
    """The vertices that are worth most beyond the price, in whole nodes: rounded down, up, or one number up."""
    surplus = columns.gains - columns.nodes @ prices
    order = np.lexsort((-surplus, columns.owner))
    near = order[np.arange(len(order)) - columns.firsts[columns.owner[order]] < _NEAREST]
    owner, nodes = columns.owner[near], columns.nodes[near]
    down = np.floor(nodes + _CLOSE).astype(np.int64)
    part = (nodes - down > _CLOSE).astype(np.int64)
    ways = [down, down + part, *(down + part * one for one in np.eye(down.shape[1], dtype=np.int64))]
    rows = np.unique(np.column_stack((np.tile(owner, len(ways)), np.concatenate(ways))), axis=0)
    allowed = t.permits(rows[:, 0], rows[:, 1:])
    return rows[allowed, 0], rows[allowed, 1:]


def _improved(t: _Trainers, nodes: Whole, there: Whole, some: tuple[Whole, Whole], prices: Values) -> Whole:
    """Nodes of all trainers: from those that must run on, as long as a change, or two together, gain something."""
    for _ in range(_ROUNDS):
        left = there - nodes.sum(axis=0)
        owner, others = _changes(t, nodes, left, some)
        gain = t.gains(owner, others) - t.gains(np.arange(len(nodes)), nodes)[owner]
        more = others - nodes[owner]
        rank = gain - more @ prices
        least = 1e-9 * max(1.0, float(np.abs(gain).max(initial=0.0)))
        alone = np.flatnonzero((more <= left).all(axis=1) & (gain > least))
        together: list[tuple[int, ...]] = [(m,) for m in alone[np.argsort(-rank[alone], kind="stable")].tolist()]
        if not together:
            together = _pairs(owner, more, gain, rank, left, least)
        if not together:
            break
        changed = set[int]()
        for change in together:
            who, needs = [int(owner[m]) for m in change], sum(more[m] for m in change)
            if changed.isdisjoint(who) and (needs <= left).all():
                left = left - needs
                changed.update(who)
                for j, m in zip(who, change, strict=True):
                    nodes[j] = others[m]
    return nodes


def _changes(t: _Trainers, nodes: Whole, left: Whole, some: tuple[Whole, Whole]) -> tuple[Whole, Whole]:
    """What each trainer could have instead: nothing, a rounded vertex, its present nodes, or some more, fewer or
    others than now."""
    one = np.eye(nodes.shape[1], dtype=np.int64)
    steps = [sign * 2**i * each for each in one for i in range(int(left.max()).bit_length() + 3) for sign in (1, -1)]
    steps += [many * (a - b) for a, b in permutations(one, 2) for many in (1, 2, 4)]
    moved = nodes[:, None, :] + np.array([*steps, *(left * each for each in one)])
    everyone = np.arange(len(nodes))
    owner = np.concatenate((some[0], everyone, everyone, np.repeat(everyone, moved.shape[1])))
    others = np.concatenate((some[1], np.zeros_like(nodes), t.held, moved.reshape(-1, nodes.shape[1])))
    keep = t.permits(owner, others) & (others != nodes[owner]).any(axis=1)
    return owner[keep], others[keep]


def _pairs(owner: Whole, more: Whole, gain: Values, rank: Values, left: Whole, least: float) -> list[tuple[int, ...]]:
    """Pairs of changes of two trainers that fit together and gain something, the best first."""
    order = np.argsort(-rank, kind="stable")
    takes, gives = order[gain[order] > 0][: _PAIRS[0]], order[(more[order] < 0).any(axis=1)][: _PAIRS[1]]
    both = gain[takes][:, None] + gain[gives]
    fits = (more[takes][:, None, :] + more[gives] <= left).all(axis=2)
    good = np.argwhere(fits & (owner[takes][:, None] != owner[gives]) & (both > least))
    best = np.argsort(-both[good[:, 0], good[:, 1]], kind="stable")
    return [(int(takes[a]), int(gives[b])) for a, b in good[best].tolist()]


def _with_those_that_fit(problem: Problem) -> tuple[Problem, Whole]:
    """Nodes for those that are pinned or must run, as few as each may have, and the problem in which the others are
    free: if not all fit, the last ones go without."""
    needs = [j for j, c in enumerate(problem.candidates) if c.pin or c.must_run]
    needs.sort(key=lambda j: problem.candidates[j].pin is None)
    while (placed := place([problem.candidates[j] for j in needs], problem.types_nodes)) is None:
        needs.pop()
    nodes = np.zeros((len(problem.candidates), len(problem.types)), dtype=np.int64)
    for j, of_type in zip(needs, placed, strict=True):
        nodes[j] = of_type
    free = (c if c.pin == 0 else replace(c, pin=None, must_run=False) for c in problem.candidates)
    fit = (c if j in needs else other for j, (c, other) in enumerate(zip(problem.candidates, free, strict=True)))
    return replace(problem, candidates=tuple(fit)), nodes
