"""Whether measuring a trainer on another count pays: what plans gain by knowing its rate there, minus the cost.

A plan gives the trainer the count at which its value minus what the nodes are worth to others (their *price*) is
greatest. The rates on counts where it was not measured are uncertain: their logarithms are a Gaussian process in
log2 n, a step off the first node, a slope and a random walk, given the measured rates. To measure a count tells its
rate and something about the others; where that changes the best count, plans gain the difference. The expected gain
per second, over what the measurement may tell, times how long it lasts, is the worth of the measurement. Its cost is
that of the rescales, the trainer's own and those of the trainers that lend and receive its nodes, and the time on a
count that no plan would choose. Everything is in node-seconds at the speed of one node.

One count is measured at a time, and then it is asked again: what the first one tells decides whether there is a second.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from statistics import NormalDist, fmean

from pilot.core.curves.curve import RATES, Curve
from pilot.core.curves.curve_model import MeasuredRate
from pilot.core.ids import TrainerId
from pilot.core.trainer.trainer import Trainer

MEASURED_ERROR = 0.02
"""The relative error of a rate that a profile measures."""

MEASURING_S = 20.0
"""The time one count takes: some reports, after the steps of the new group have become regular."""

LEVEL, STEP, SLOPE, WALK, LOST = 1.0, 0.2, 0.1, 0.05, 0.2
"""How uncertain the logarithm of a rate is if nothing was measured. The first four are standard deviations: all rates
alike, of the step off the first node, and per doubling of a slope that is the same everywhere and of a random walk.
Where the rate per node falls, the walk's variance is greater by LOST times the fall of its logarithm: the fall may be
anywhere in between. Trainers of many kinds differ by about so much."""

DOUBTED = 0.16
"""A measured rate whose error is larger contradicts others; the rest of what ages adds is less."""

OUTCOMES = tuple(NormalDist().inv_cdf((i + 0.5) / 7) for i in range(7))
"""What a measurement may tell, in standard deviations; all are as likely."""

FEW = 8
"""Up to this many counts, each is considered; of more, the ends and powers of two, and up to :data:`FINE` nodes sums of
two of these."""

FINE = 64


@dataclass(frozen=True, slots=True)
class Outlook:
    """The situation of a trainer that may be measured on another count."""

    points: tuple[MeasuredRate, ...]  #: its measured rates
    curve: Curve  #: that plans assume
    value: Callable[[Curve], Curve]  #: of a curve, by the objective
    allowed: tuple[int, ...]  #: the counts that a plan may give it, rising
    most: int  #: how many nodes it can have now
    held: int  #: how many nodes it has
    idle: int  #: how many nodes are free
    alone: bool  #: whether nobody else could use its nodes
    rescale_up_s: float  #: the cost of a rescale to more nodes
    rescale_down_s: float  #: and to fewer
    forward_s: float  #: how far plans look ahead
    lasts_s: float  #: how long they use what they learn
    price: NodePrice  #: what nodes are worth to others
    most_node_s: float = math.inf  #: a measurement may use no more
    #: how uncertain the shape of a curve is in this pool, relative to one of which nothing is known
    doubt: float = 1.0

    def rescale_s(self, nodes: int) -> float:
        """The cost of a rescale to ``nodes`` nodes."""
        return self.rescale_up_s if nodes > self.held else self.rescale_down_s if nodes < self.held else 0.0


def best_count(outlook: Outlook) -> int | None:
    """Return the count that is most worth measuring; None if none is worth its cost."""
    if outlook.value(Curve.proportional()) == outlook.value(outlook.curve.scaled(0.0)):
        return None  # a user's objective, whose values do not depend on rates
    market = _Market.of(outlook)
    worths = {n: market.worth(n) for n in market.options[1:] if market.affordable(n)}
    best = max(worths, key=worths.__getitem__, default=None)
    return best if best is not None and worths[best] > 0 else None


@dataclass(frozen=True, slots=True)
class _Market:
    """The trainer's curve as plans assume it, how uncertain it is, and the count ``planned`` at the price of a node."""

    outlook: Outlook
    known: Curve  #: its value by the curve that plans assume
    unit: float  #: the value of one node
    counts: tuple[int, ...]  #: at which rates are looked at
    options: tuple[int, ...]  #: those of them that a plan may give, and 0
    covariance: Sequence[Sequence[float]]  #: of the rates' logarithms
    planned: int

    @classmethod
    def of(cls, outlook: Outlook) -> _Market:
        """At the price, by the curve that plans assume."""
        allowed, value = outlook.allowed, outlook.value(outlook.curve)
        ends = {allowed[0], allowed[-1], outlook.held}
        options = [0, *(n for n in allowed if len(allowed) <= FEW or n in ends or _is_round(n))]
        unit = value.single_node_rate()
        moved = {n: outlook.rescale_s(n) * value.at(outlook.held) / unit / outlook.forward_s for n in allowed}
        planned = max(allowed, key=lambda n: value.at(n) / unit - outlook.price.per_node * n - moved[n])
        counts = sorted({1, planned, *options[1:]})
        covariance = _covariance(counts, outlook.points, outlook.curve, outlook.doubt)
        return cls(outlook, value, unit, tuple(counts), tuple(sorted({planned, *options})), covariance, planned)

    def value(self, nodes: int) -> float:
        """The value on a number of nodes by the curve that plans assume."""
        return self.known.at(nodes) / self.unit

    def worth(self, count: int) -> float:
        """What measuring ``count`` gains until the pool changes, less its cost; nothing if the pool changes before."""
        outlook = self.outlook
        takes_s = outlook.rescale_s(count) + MEASURING_S
        return outlook.lasts_s * math.exp(-takes_s / outlook.lasts_s) * self.gain(count) - self.cost(count)

    def gain(self, count: int) -> float:
        """What plans gain per second, as expected, if the rate on ``count`` is measured: by how much another count than
        the planned one would then be better, less by how much one is better as far as is known."""
        at = self.counts.index(count)
        sd = math.sqrt(self.covariance[at][at] + MEASURED_ERROR**2)
        curves = (self._curve([row[at] / sd * outcome for row in self.covariance]) for outcome in OUTCOMES)
        return fmean(self._missed(self.outlook.value(curve)) for curve in curves) - self._missed(self.known)

    def _missed(self, value: Curve) -> float:
        """By how much another count than the planned one is better if ``value`` is the trainer's."""
        surplus = {n: value.at(n) / self.unit - self.outlook.price.per_node * n for n in self.options}
        return max(surplus.values()) - surplus[self.planned]

    def _curve(self, moves: Sequence[float]) -> Curve:
        """The curve whose rates' logarithms differ by ``moves``. Its rate per node is not greater than on a smaller
        count that was measured, and not less than on a larger one."""
        curve, measured = self.outlook.curve, [int(p.nodes) for p in self.outlook.points]
        per_node = {n: curve.at(n) / n * math.exp(move) for n, move in zip(self.counts, moves, strict=True)}
        for n in self.counts:
            if n not in measured:
                most = min((curve.at(m) / m for m in measured if m < n), default=math.inf)
                least = max((curve.at(m) / m for m in measured if m > n), default=0.0)
                per_node[n] = max(least, min(most, per_node[n]))
        if 1 not in measured:
            per_node[1] = max(per_node.values())
        return Curve.of((n, n * rate) for n, rate in per_node.items())

    def affordable(self, count: int) -> bool:
        """Whether the trainer can be measured on ``count`` now."""
        outlook = self.outlook
        known = {point.nodes for point in outlook.points if point.error <= DOUBTED}
        fits = count <= outlook.most and count != outlook.held and count not in known
        return fits and count * (outlook.rescale_s(count) + MEASURING_S) <= outlook.most_node_s

    def cost(self, count: int) -> float:
        """What it costs to be measured on ``count`` on the way to the planned one."""
        detour = self._route(count, self.planned) - self._route(self.planned)
        worse = self.value(self.planned) - self.value(count) - self.outlook.price.per_node * (self.planned - count)
        return detour + MEASURING_S * max(0.0, worse)

    def _route(self, *counts: int) -> float:
        """The cost of the rescales to ``counts``, one after the other."""
        outlook, cost, before = self.outlook, 0.0, self.outlook.held
        for count in counts:
            up_s, down_s = outlook.rescale_up_s, outlook.rescale_down_s
            cost += self.value(before) * (up_s if count > before else down_s if count < before else 0.0)
            if not outlook.alone and (count < before or count > before + outlook.idle):
                cost += outlook.price.rate * (up_s if count < before else down_s)
            before = count
        return cost


def _is_round(nodes: int) -> bool:
    return nodes.bit_count() <= (2 if nodes <= FINE else 1)


def _covariance(
    counts: Sequence[int], points: Sequence[MeasuredRate], curve: Curve, doubt: float = 1.0
) -> list[list[float]]:
    """The covariance of the logarithms of the rates on ``counts``, given the measured ``points``."""
    at = [(math.log2(n), walked) for n, walked in _walked((*(p.nodes for p in points), *counts), curve)]
    cov = [[LEVEL**2 + doubt**2 * _shape(*x, *y) for y in at] for x in at]
    for point in points:
        (variance, *row), *others = cov
        scale = 1.0 / (variance + point.error**2)
        cov = [[c - first * scale * r for c, r in zip(one, row, strict=True)] for first, *one in others]
    return cov


def _walked(counts: Sequence[float], curve: Curve) -> Iterator[tuple[float, float]]:
    """The variance of the random walk from one node to each of ``counts``: it is larger where the curve bends."""
    rising = sorted({1.0, *counts})
    per_node = [math.log(max(curve.at(n), RATES[0]) / n) for n in rising]
    steps = (
        WALK**2 * math.log2(n1 / n0) + LOST * abs(after - before)
        for (n0, n1), (before, after) in zip(pairwise(rising), pairwise(per_node), strict=True)
    )
    until = dict(zip(rising, accumulate(steps, initial=0.0), strict=True))
    return ((n, until[n]) for n in counts)


def _shape(x: float, walked_x: float, y: float, walked_y: float) -> float:
    """The covariance of the logarithms of the rates on 2^x and 2^y nodes by their shape alone."""
    step = STEP**2 if x and y else 0.0
    return step + SLOPE**2 * x * y + min(walked_x, walked_y)


ROUNDS = 20
"""Bisection steps in the search for the price."""

Offer = list[tuple[int, float]]
"""A trainer's node counts that may be best at some price, rising, and its value per second on each."""


@dataclass(frozen=True, slots=True)
class NodePrice:
    """``per_node``: the price of one; ``rate``: what another trainer does, on average, with those that it buys."""

    per_node: float
    rate: float


class Prices:
    """The worth of ``nodes`` nodes to ``trainers``, by the objective.

    The price is the one at which all trainers together want as many nodes as there are. It is at least what the trainer
    that can best spare a node would lose with it: plans leave nodes where they are if a rescale does not pay off. If
    others are much faster and the objective counts samples, a node is worth much more to them than to a slow one.
    """

    def __init__(self, trainers: Sequence[Trainer], nodes: int, value_of: Callable[[Trainer], Curve]) -> None:
        self._values = {t.id: value_of(t) for t in trainers}
        offers = {t.id: _offer(t, self._values[t.id], nodes) for t in trainers}
        low, high = 0.0, max(value / count for offer in offers.values() for count, value in offer if count)
        for _ in range(ROUNDS):
            middle = (low + high) / 2
            if sum(_best(offer, middle)[0] for offer in offers.values()) > nodes:
                low = middle
            else:
                high = middle
        self._high = high
        self._rates = {name: _best(offer, high)[1] for name, offer in offers.items()}
        able = [(t.id, self._values[t.id], len(t.target)) for t in trainers if len(t.target) > t.spec.min_nodes]
        self._losses = {name: value.at(held) - value.at(held - 1) for name, value, held in able}

    def to_others(self, name: TrainerId) -> NodePrice | None:
        """The price for the others than ``name``, in units of the value of its first node; None: it is worth nothing
        there."""
        unit, others = self._values[name].single_node_rate(), len(self._values) - 1
        if unit <= 0:
            return None
        if not others:
            return NodePrice(0.0, 0.0)
        loss = min((loss for other, loss in self._losses.items() if other != name), default=0.0)
        rate = (sum(self._rates.values()) - self._rates[name]) / others
        return NodePrice(max(self._high, loss) / unit, rate / unit)


def _offer(trainer: Trainer, value: Curve, nodes: int) -> Offer:
    spec = trainer.spec
    most = min(spec.max_nodes, max(nodes, spec.min_nodes))
    tried = sorted({spec.min_nodes, most, *value.counts(), *spec.sizes})
    return [(0, 0.0)] + [(n, value.at(n)) for n in tried if n <= most and 0 < n == spec.fitting(n)]


def _best(offer: Offer, price: float) -> tuple[int, float]:
    """The count that gains most at ``price``."""
    return max(offer, key=lambda one: one[1] - price * one[0])
