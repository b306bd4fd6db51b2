"""Plans by a price for each type of nodes (Lagrange): for several types, and where an exact planner takes too long.

At given prices each trainer decides alone: it takes the nodes that gain most beyond their price. The best prices, and
so the lowest bound of all plans, are where as many nodes are asked for as there are. If nodes could be divided, a
trainer's best nodes would always be a vertex: all but two of its numbers x_k are at the ends of a region in which the
rescale costs the same (0, held, or all that there are), and the others follow from a count (its minimum, maximum or a
size) and from an effective number at which its curve bends. The vertices of all trainers are written down once; then
the bound is a convex function of few prices, which Newton's method minimises after it was smoothed (each maximum as the
logarithm of a sum of exponentials), less and less so.

A plan begins with each trainer's best vertex at prices that are a bit higher, in whole nodes, if these fit. Then
trainers take what is nearly worth its price: another such vertex, or a few nodes more, fewer or others than they have.
At the end nodes that are left go to whom they gain most, and pairs of changes are tried. For few trainers plans
also begin with those that must run, and others take whatever gains something.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, permutations, product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pilot.core.plan.problem import Candidate, Plan, PlanStatus, Problem, place
from pilot.planners.choice import best_known, plan_of

Whole = NDArray[np.int64]
Values = NDArray[np.float64]

MOST_BENDS, MOST_TYPES = 16, 6
"""If a curve (with several types) or the pool has more, some vertices are left out, and no bound is claimed."""
_SMOOTHED = (0.25, 1e-4, 14)  #: how far maxima are smoothed, as a share of the mean trainer's gain; in so many stages
_NEWTON_STEPS = 5
_RIDGE = 1e-9  #: prices stay finite where those that must run take all nodes
_NEAREST = 16  #: so many vertices of each trainer are rounded
_PAIRS = (64, 256)  #: so many changes that take nodes are tried together with so many that give some back
_ROUNDS = 40
_HIGHER, _NEARLY = 1e-3, 1e-2  #: prices for the first vertices; how much more than its gain a change may cost
_FEW, _FACTORS = 20, (1.0, 0.85, 1.2)  #: for so few trainers, plans are made at prices that are lower or higher, too
_CLOSE = 1e-9
_ENDLESS = 1e18


@dataclass(frozen=True, slots=True)
class _Trainers:
    """All candidates' numbers, one row each."""

    t_fwd_s: float
    speeds: Values
    held: Whole
    most: Whole  #: x_jk is at most this
    allowed: NDArray[np.bool_]  #: by the count of nodes; the last one, for all larger ones, is not
    one_type: NDArray[np.bool_]
    min_nodes: Whole
    bends: Values  #: of their curves, and the slopes after them
    slopes: Values
    costs: Values  #: of a rescale up, and of one down

    def gains(self, owner: Whole, nodes: Values | Whole) -> Values:
        """:meth:`Candidate.gain_on` of each row of ``nodes``, for the trainer ``owner``; whole nodes or not."""
        beyond = (self.speeds[owner] * nodes).sum(axis=1, keepdims=True) - self.bends[owner]
        lengths = np.diff(self.bends, axis=1, append=_ENDLESS)
        value = (np.clip(beyond, 0.0, lengths[owner]) * self.slopes[owner]).sum(axis=1)
        value[nodes.sum(axis=1) < self.min_nodes[owner] - _CLOSE] = 0.0
        change = nodes - self.held[owner]
        charged = np.stack([(change > _CLOSE).any(axis=1), (change < -_CLOSE).any(axis=1)], axis=1) * self.costs[owner]
        gains: Values = self.t_fwd_s * value - charged.max(axis=1)
        return gains

    def permits(self, owner: Whole, nodes: Values | Whole) -> NDArray[np.bool_]:
        """:meth:`Candidate.allows_on` of each row, if there were no other trainers. Parts of nodes may lie between two
        allowed numbers."""
        inside: NDArray[np.bool_] = np.all((nodes >= -_CLOSE) & (nodes <= self.most[owner] + _CLOSE), axis=1)
        inside &= np.where(self.one_type[owner], (nodes > _CLOSE).sum(axis=1) <= 1, True)
        total, who, most = nodes[inside].sum(axis=1), owner[inside], self.allowed.shape[1] - 1
        ends = (np.floor(total + _CLOSE), np.ceil(total - _CLOSE))
        inside[inside] = np.all([self.allowed[who, np.minimum(end, most).astype(int)] for end in ends], axis=0)
        return inside


Columns = tuple[Whole, Values, Values]
"""What trainers may have, by trainer: whose, nodes, gain."""


def plan(problem: Problem, planner: str) -> Plan:
    """The plan by prices, or the current allocation if that is better. It leaves ending nodes alone, and then knows no
    bound."""
    if not problem.candidates:
        return plan_of(problem, [], PlanStatus.OPTIMAL, 0.0, planner)
    typed = problem.with_types()
    least = _least(typed)
    typed = replace(typed, candidates=tuple(c.free_of_pin() for c in typed.candidates))
    trainers, there = _trainers(typed), np.array(typed.types_nodes)
    columns = _columns(trainers, typed, least)
    prices, bound = _best_prices(columns, np.maximum(there, 1.0))  # of no nodes, the price could be any
    some, factors = _rounded(trainers, columns, prices), _FACTORS if len(least) <= _FEW else ()
    first = _first(trainers, some, prices * (1 + _HIGHER), least)
    first = first if (first.sum(axis=0) <= there).all() else least
    tries = [(first, prices, _NEARLY), *((least, prices * factor, _ENDLESS) for factor in factors)]
    found = [_improved(trainers, begin.copy(), there, some, at, nearly) for begin, at, nearly in tries]
    counts: list[list[Any]] = [[tuple(n) if problem.types else n[0] for n in nodes.tolist()] for nodes in found]
    problem = typed if problem.types else problem
    made = [plan_of(problem, each, PlanStatus.INCUMBENT, None, planner) for each in counts]
    few = len(there) <= MOST_TYPES and all(len(_bends(c)) == len(c.value.nodes) for c in typed.candidates)
    exact = (few or len(there) == 1) and not problem.ending
    return best_known(problem, made, bound if exact else None, planner)


def _least(problem: Problem) -> Whole:
    """As few nodes as those may have that are pinned or must run; they fit together."""
    needs = [j for j, c in enumerate(problem.candidates) if c.pin or c.must_run]
    nodes = np.zeros((len(problem.candidates), len(problem.types)), dtype=np.int64)
    placed = place([problem.candidates[j] for j in needs], problem.types_nodes) or []
    for j, given in zip(needs, placed, strict=True):
        nodes[j] = given
    return nodes


def _trainers(problem: Problem) -> _Trainers:
    cs, there = problem.candidates, np.array(problem.types_nodes)
    most = np.array([min(c.max_nodes, problem.nodes) for c in cs])
    allowed = np.zeros((len(cs), most.max() + 2), dtype=np.bool_)
    for row, c, largest in zip(allowed, cs, most, strict=True):
        row[[n for n in _counts(c) if n <= largest] if c.sizes else slice(c.min_nodes, largest + 1)] = True
        row[0] = c.allows(0)
    speeds = np.array([c.speeds for c in cs], dtype=float)
    return _Trainers(
        problem.t_fwd_s,
        speeds,
        held=np.array([c.held for c in cs]),
        most=np.where(speeds > 0, np.minimum(there, most[:, None]), 0),
        allowed=allowed,
        one_type=np.array([c.one_type for c in cs]),
        min_nodes=np.array([c.min_nodes for c in cs]),
        bends=_padded([c.value.nodes for c in cs], _ENDLESS),
        slopes=_padded([c.value.slopes() for c in cs], 0.0),
        costs=np.array([np.multiply(c.value_on(c.held), (c.rescale_up_s, c.rescale_down_s)) for c in cs]),
    )


def _counts(c: Candidate) -> list[int]:
    """Its allowed counts if these are few, else the ends of its range."""
    return [n for n in c.sizes or (c.min_nodes, c.max_nodes) if c.allows(n)]


def _bends(c: Candidate) -> Sequence[float]:
    """The effective numbers at which its curve bends; if these are numbers of nodes, the whole ones beside them."""
    if c.speeds == (1.0,):
        return sorted(c.value.counts())
    return c.value.nodes[:: (len(c.value.nodes) - 1) // MOST_BENDS + 1]


def _padded(rows: Sequence[Sequence[float]], filler: float) -> Values:
    longest = max(map(len, rows))
    return np.array([[*row, *[filler] * (longest - len(row))] for row in rows], dtype=float)


def _columns(t: _Trainers, problem: Problem, least: Whole) -> Columns:
    """The vertices of all trainers, each once, and the ``least`` nodes of each."""
    none, everyone = np.zeros_like(t.held), np.arange(len(t.held))
    counts = _padded([_counts(c) for c in problem.candidates], math.nan)
    bends = _padded([_bends(c) for c in problem.candidates], math.nan)
    up_costs_more = (t.costs[:, 0] >= t.costs[:, 1])[:, None]
    one_way = np.where(up_costs_more, none, t.held), np.where(up_costs_more, np.minimum(t.held, t.most), t.most)
    blocks: list[Values | Whole] = [none[:, None, :], t.held[:, None, :], least[:, None, :]]
    with np.errstate(divide="ignore", invalid="ignore"):
        blocks += [*_vertices(none, t.most, counts, bends, t.speeds), *_vertices(*one_way, counts, bends, t.speeds)]
    rows = np.concatenate(
        [np.column_stack((np.repeat(everyone, b.shape[1]), b.reshape(-1, none.shape[1]))) for b in blocks]
    )
    rows = rows[t.permits(rows[:, 0].astype(np.int64), rows[:, 1:])]
    once = np.unique(rows.round(7), axis=0)
    owner, nodes = once[:, 0].astype(np.int64), once[:, 1:]
    return owner, nodes, t.gains(owner, nodes)


def _vertices(low: Whole, high: Whole, counts: Values, bends: Values, speeds: Values) -> Iterator[Values]:
    """Blocks (trainer, number, type) of the vertices of ``low <= x <= high``, cut at ``counts`` and ``bends``; some lie
    outside."""
    for corner in product((False, True), repeat=low.shape[1]):
        if len(corner) > MOST_TYPES and sum(corner) > 1:
            continue
        at = np.where(corner, high, low).astype(float)
        yield at[:, None, :]
        free = [k for k, is_high in enumerate(corner) if not is_high]
        for k in free:
            for ends, weight in ((counts, np.ones_like(speeds)), (bends, speeds)):
                block = np.repeat(at[:, None, :], ends.shape[1], axis=1)
                block[:, :, k] += (ends - (weight * at).sum(axis=1, keepdims=True)) / weight[:, k, None]
                yield block
        n = np.repeat(counts - at.sum(axis=1, keepdims=True), bends.shape[1], axis=1)
        e = np.tile(bends - (speeds * at).sum(axis=1, keepdims=True), (1, counts.shape[1]))
        for k, other in combinations(free, 2):
            block = np.repeat(at[:, None, :], n.shape[1], axis=1)
            more = (e - speeds[:, other, None] * n) / (speeds[:, k, None] - speeds[:, other, None])
            block[:, :, k] += more
            block[:, :, other] += n - more
            yield block


def _best_prices(columns: Columns, there: Values) -> tuple[Values, float]:
    """The prices at which the bound is lowest, and the bound. Prices stay positive by a barrier, and Newton's steps
    are shorter the further they would lead."""
    owner, nodes, gains = columns
    firsts = np.flatnonzero(np.diff(owner, prepend=-1))
    scale = float((np.maximum.reduceat(gains, firsts) - np.minimum.reduceat(gains, firsts)).mean()) or 1.0
    gains, lowest = gains / scale, math.inf
    prices = at = np.full(len(there), 0.5 * len(firsts) / there.sum())
    for sharp in np.repeat(np.geomspace(*_SMOOTHED), _NEWTON_STEPS):
        surplus = gains - nodes @ prices
        best = np.maximum.reduceat(surplus, firsts)
        bound = float(best.sum() + prices @ there)
        if bound < lowest:
            lowest, at = bound, prices
        weights = np.exp((surplus - best[owner]) / sharp)
        weights /= np.add.reduceat(weights, firsts)[owner]
        asked = weights[:, None] * nodes
        mean = np.add.reduceat(asked, firsts)
        bend = (nodes.T @ asked - mean.T @ mean) / sharp + np.diag(sharp / prices**2 + _RIDGE)
        slope = there - mean.sum(axis=0) - sharp / prices
        step = -np.linalg.solve(bend, slope)
        far = max(math.sqrt(max(0.0, -float(slope @ step)) / (sharp * len(firsts))), float((-step / prices).max()))
        prices = prices + step / (1.0 + far)
    return at * scale, lowest * scale


def _rounded(t: _Trainers, columns: Columns, prices: Values) -> tuple[Whole, Whole]:
    """The vertices that are worth most beyond the price, in whole nodes: rounded down, or up."""
    owner, nodes, gains = columns
    order = np.lexsort((nodes @ prices - gains, owner))
    near = order[np.arange(len(order)) - np.searchsorted(owner, owner) < _NEAREST]
    down = np.floor(nodes[near] + _CLOSE).astype(np.int64)
    part = (nodes[near] - down > _CLOSE).astype(np.int64)
    rows = np.unique(np.column_stack((np.tile(owner[near], 2), np.concatenate((down, down + part)))), axis=0)
    rows = rows[t.permits(rows[:, 0], rows[:, 1:])]
    return rows[:, 0], rows[:, 1:]


def _first(t: _Trainers, some: tuple[Whole, Whole], prices: Values, least: Whole) -> Whole:
    """Each trainer's best rounded vertex at these prices; the ``least`` nodes if it has none."""
    owner, nodes = some
    order, first = np.lexsort((nodes @ prices - t.gains(owner, nodes), owner)), least.copy()
    best = order[np.flatnonzero(np.diff(owner, prepend=-1))]
    first[owner[best]] = nodes[best]
    return first


def _improved(
    t: _Trainers, nodes: Whole, there: Whole, some: tuple[Whole, Whole], prices: Values, nearly: float
) -> Whole:
    """Nodes of all trainers: from these on, as long as a change, or two together, gain something. Changes that are
    ``nearly`` worth their price come first."""
    for _ in range(_ROUNDS):
        left = there - nodes.sum(axis=0)
        owner, others = _changes(t, nodes, left, some)
        gain = t.gains(owner, others) - t.gains(np.arange(len(nodes)), nodes)[owner]
        more = others - nodes[owner]
        lacks = more @ prices - gain
        order = np.argsort(lacks, kind="stable")
        least = _CLOSE * max(1.0, float(np.abs(gain).max(initial=0.0)))
        alone = (more <= left).all(axis=1) & (gain > least)
        worth = order[(alone & (lacks < nearly * gain))[order]]
        single = worth if len(worth) else np.flatnonzero(alone)[np.argsort(-gain[alone], kind="stable")][:1]
        found = [(m,) for m in single.tolist()] or _pairs(owner, more, gain, order, left, least)
        changed = set[int]()
        for change in found:
            who, needs = [int(owner[m]) for m in change], more[list(change)].sum(axis=0)
            if changed.isdisjoint(who) and (needs <= left).all():
                left = left - needs
                changed.update(who)
                nodes[who] = others[list(change)]
        if not changed:
            break
    return nodes


def _changes(t: _Trainers, nodes: Whole, left: Whole, some: tuple[Whole, Whole]) -> tuple[Whole, Whole]:
    """What each trainer could have instead: nothing, a rounded vertex, what it held, or some more, fewer or others."""
    one, everyone = np.eye(nodes.shape[1], dtype=np.int64), np.arange(len(nodes))
    steps = [sign * 2**i * each for each in one for i in range(int(left.max()).bit_length() + 3) for sign in (1, -1)]
    steps += [a - b for a, b in permutations(one, 2)]
    moved = nodes[:, None, :] + np.array([*steps, *(left * each for each in one)])
    owner = np.concatenate((some[0], everyone, everyone, np.repeat(everyone, moved.shape[1])))
    others = np.concatenate((some[1], np.zeros_like(nodes), t.held, moved.reshape(-1, nodes.shape[1])))
    keep = t.permits(owner, others) & (others != nodes[owner]).any(axis=1)
    return owner[keep], others[keep]


def _pairs(owner: Whole, more: Whole, gain: Values, order: Whole, left: Whole, least: float) -> list[tuple[int, ...]]:
    """Pairs of changes of two trainers that fit together and gain something, the best first."""
    takes, gives = order[gain[order] > 0][: _PAIRS[0]], order[(more[order] < 0).any(axis=1)][: _PAIRS[1]]
    both = gain[takes][:, None] + gain[gives]
    fits = (more[takes][:, None, :] + more[gives] <= left).all(axis=2)
    good = np.argwhere(fits & (owner[takes][:, None] != owner[gives]) & (both > least))
    best = np.argsort(-both[good[:, 0], good[:, 1]], kind="stable")
    return [(int(takes[a]), int(gives[b])) for a, b in good[best].tolist()]
