"""Which counts of a trainer are worth measuring: what plans gain by knowing its curve, minus the cost of finding out.

The model of :mod:`pilot.core.curves.curve_model` predicts how a trainer scales, with an error. A plan gives the
trainer the count at which its value minus what the nodes are worth to others (their *price*) is greatest. If the true
curve differs from the assumed one, another count would have been better; the expected loss is the *regret* over the
curves that the trainer may have (four of them, one standard deviation to each side). With more measured counts the
curve is more certain and the regret smaller: the difference is the worth of a profile, credited for as long as plans
would not have reached other counts by themselves. The count that plans give the trainer is measured without a profile;
once a rate on another count is known, it shows how the trainer scales, and only what a profile adds counts. Its cost is
that of the rescales, its own and those of the trainers that lend and receive its nodes, and the time on counts that no
plan would choose. Everything is in node-seconds at the speed of one node.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import fmean

from pilot.core.curves.curve import Curve
from pilot.core.curves.curve_model import Fit, MeasuredRate, Priors, fit, speedup
from pilot.core.plan.objective import Objective
from pilot.core.trainer.trainer import Trainer

MEASURED_ERROR = 0.02
"""The relative error of a rate that a profile measures."""

MEASURING_S = 20.0
"""The time one count takes: some reports, after the steps of the new group have become regular."""

COUNTS_MOST = 2
"""A third count hardly pays: the model has three parameters, and is sure of one."""

FEW = 8
"""Up to this many counts, each is considered."""


@dataclass(frozen=True, slots=True)
class Outlook:
    """The situation of a trainer that may be profiled."""

    points: tuple[MeasuredRate, ...]  #: the measured rates of its curve
    priors: Priors  #: of curves
    allowed: tuple[int, ...]  #: the counts that it can be measured on, rising
    share: float  #: its part of the nodes, if all trainers are alike
    held: int  #: how many nodes it has
    idle: int  #: how many nodes are free
    alone: bool  #: whether nobody else could use its nodes
    rescale_up_s: float  #: the cost of a rescale to more nodes
    rescale_down_s: float  #: and to fewer
    lasts_s: float  #: how long plans would not have measured it by themselves
    #: what nodes are worth to others; None: not known, the others are assumed to be like it
    price: NodePrice | None = None


def best_counts(outlook: Outlook) -> tuple[int, ...]:
    """Return the counts that are worth most, the largest first; () if none are worth their cost."""
    market = _Market.of(outlook)
    anyway = (market.planned,) if outlook.points else ()  # the first rate alone says nothing about how it scales
    now = market.regret(anyway)
    best: tuple[int, ...] = ()
    gain = 0.0
    for counts in market.choices():
        worth = outlook.lasts_s * (now - market.regret((*anyway, *counts))) - market.cost(counts)
        if worth > gain:
            best, gain = counts, worth
    return best


@dataclass(frozen=True, slots=True)
class _Market:
    """The trainer's curve as it is ``known``, the ``price`` of a node, and the count ``planned`` at that price."""

    outlook: Outlook
    known: Fit
    price: NodePrice
    planned: int

    @classmethod
    def of(cls, outlook: Outlook) -> _Market:
        """At the known price, or at that among trainers like this one."""
        known = fit(outlook.points, outlook.priors)
        curve = known.ln_a, known.ln_b
        price = outlook.price or _among_equals(outlook.share, curve)
        planned = max(outlook.allowed, key=lambda n: speedup(n, *curve) - price.per_node * n)
        return cls(outlook, known, price, planned)

    @property
    def curve(self) -> tuple[float, float]:
        """The parameters of its most likely curve."""
        return self.known.ln_a, self.known.ln_b

    def choices(self) -> Iterator[tuple[int, ...]]:
        """One count or two to measure: of many, powers of two, the ends and the planned one, not that one alone."""
        allowed = self.outlook.allowed
        ends = {allowed[0], allowed[-1], self.planned}
        some = [n for n in allowed if len(allowed) <= FEW or n in ends or n & (n - 1) == 0]
        for many in range(1, COUNTS_MOST + 1):
            yield from (counts[::-1] for counts in combinations(some, many) if counts != (self.planned,))

    def surplus(self, nodes: int, curve: tuple[float, float]) -> float:
        """The trainer's gain on a number of nodes, minus their price."""
        return speedup(nodes, *curve) - self.price.per_node * nodes

    def regret(self, counts: Sequence[int]) -> float:
        """The expected loss of a plan per second if the curve is measured on ``counts``, too."""
        points = {p.nodes: p for p in self.outlook.points}
        points |= {n: MeasuredRate(n, self.known.per_s(n), MEASURED_ERROR) for n in counts}
        then = fit(sorted(points.values(), key=lambda p: p.nodes), self.outlook.priors)
        curves = list(_possible(then, self.curve))
        best = sum(max(self.surplus(n, curve) for n in self.outlook.allowed) for curve in curves)
        return (best - sum(self.surplus(self.planned, curve) for curve in curves)) / len(curves)

    def cost(self, counts: Sequence[int]) -> float:
        """The cost of going through ``counts`` and on to the planned count."""
        outlook, cost = self.outlook, 0.0
        up_s, down_s, before = outlook.rescale_up_s, outlook.rescale_down_s, outlook.held
        for count in (*counts, self.planned):
            own_s = up_s if count > before else down_s if count < before else 0.0
            cost += own_s * speedup(before, *self.curve)
            from_others = count - (before or self.planned)
            if not outlook.alone and (from_others < 0 or from_others > outlook.idle):
                cost += self.price.rate * (up_s if from_others < 0 else down_s)
            before = count
        planned = self.surplus(self.planned, self.curve)
        return cost + MEASURING_S * sum(planned - self.surplus(n, self.curve) for n in counts)


def _among_equals(share: float, curve: tuple[float, float]) -> NodePrice:
    """A node is worth to others what it is worth to this one at its share."""
    more, less = max(1.0, share * 1.1), max(1.0, share) / 1.1
    per_node = (speedup(more, *curve) - speedup(less, *curve)) / (more - less)
    return NodePrice(per_node, speedup(max(1.0, share), *curve))


def _possible(known: Fit, mean: tuple[float, float]) -> Iterator[tuple[float, float]]:
    """Curves that stand for all that it may have, around ``mean``: the unscented transform's points."""
    aa, ab, bb = known.covariance
    by_a = math.sqrt(aa)
    along, across = ab / by_a, math.sqrt(max(0.0, bb - ab * ab / aa))
    for sign in (math.sqrt(2), -math.sqrt(2)):
        yield mean[0] + sign * by_a, mean[1] + sign * along
        yield mean[0], mean[1] + sign * across


ROUNDS = 20
"""Bisection steps in the search for the price."""

Offer = list[tuple[int, float]]
"""A trainer's node counts that may be best at some price, rising, and its value per second on each."""


@dataclass(frozen=True, slots=True)
class NodePrice:
    """``per_node``: the price of one; ``rate``: what another trainer does, on average, with those that it buys."""

    per_node: float
    rate: float


def node_price(
    trainer: Trainer, trainers: Sequence[Trainer], nodes: int, value_of: Callable[[Trainer], Curve]
) -> NodePrice | None:
    """Return the worth of ``nodes`` nodes to the other ``trainers``, by the objective, in units of the trainer's rate
    on one node; None: ``trainer`` is alone, or worth nothing.

    The price is the one at which all trainers together want as many nodes as there are. It is at least what the trainer
    that can best spare a node would lose with it: plans leave nodes where they are if a rescale does not pay off. If
    others are much faster and the objective counts samples, a node is worth much more to them than to this one.
    """
    unit = value_of(trainer).single_node_rate()
    offers = {t.id: _offer(t, value_of(t), nodes) for t in trainers}
    if len(offers) == 1 or unit <= 0:
        return None
    low, high = 0.0, max(value / count for offer in offers.values() for count, value in offer if count)
    for _ in range(ROUNDS):
        middle = (low + high) / 2
        if sum(_best(offer, middle)[0] for offer in offers.values()) > nodes:
            low = middle
        else:
            high = middle
    rate = fmean(_best(offer, high)[1] for name, offer in offers.items() if name != trainer.id)
    lenders = [(value_of(t), len(t.target)) for t in trainers if t is not trainer and len(t.target) > t.spec.min_nodes]
    loss = min((value.at(held) - value.at(held - 1) for value, held in lenders), default=0.0)
    return NodePrice(max(high, loss) / unit, rate / unit)


def _offer(trainer: Trainer, value: Curve, nodes: int) -> Offer:
    spec = trainer.spec
    most = min(spec.max_nodes, max(nodes, spec.min_nodes))
    tried = sorted({spec.min_nodes, most, *value.counts(), *spec.sizes})
    return [(0, 0.0)] + [(n, value.at(n)) for n in tried if n <= most and 0 < n == spec.fitting(n)]


def _best(offer: Offer, price: float) -> tuple[int, float]:
    """The count that gains most at ``price``."""
    return max(offer, key=lambda one: one[1] - price * one[0])


def counts_samples(trainer: Trainer, objective: Objective) -> bool:
    """Whether the trainer would be worth more in plans if it were twice as fast on every count: until its rate on one
    of them is measured, they do not know how many nodes it should have."""
    spec, curve = trainer.spec, trainer.measured.planned
    return trainer.value(objective) != trainer.value(lambda *_: objective(spec, curve.scaled(2.0)))
