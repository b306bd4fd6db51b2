"""What nodes are worth to the other trainers, by the objective, in units of one trainer's rate on one node.

The price is the one at which all trainers together want as many nodes as there are. It is at least what the trainer
that can best spare a node would lose with it: plans leave nodes where they are if a rescale does not pay off.
If others are much faster and the objective counts samples, a node is worth much more to them than to this one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean

from pilot.core.curve import Curve
from pilot.core.objective import Objective
from pilot.core.trainer import Trainer

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
    """The price of ``nodes`` nodes among ``trainers``; None: ``trainer`` is alone, or worth nothing."""
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
    bends = {whole for n in value.nodes for whole in (math.floor(n), math.ceil(n))}
    most = min(spec.max_nodes, max(nodes, spec.min_nodes))
    tried = sorted({spec.min_nodes, most, *bends, *spec.sizes})
    return [(0, 0.0)] + [(n, value.at(n)) for n in tried if n <= most and 0 < n == spec.fitting(n)]


def _best(offer: Offer, price: float) -> tuple[int, float]:
    """The count that gains most at ``price``."""
    return max(offer, key=lambda one: one[1] - price * one[0])


def counts_samples(trainer: Trainer, objective: Objective) -> bool:
    """Whether the trainer would be worth more in plans if it were twice as fast on every count: until its rate on one
    of them is measured, they do not know how many nodes it should have."""
    spec, curve = trainer.spec, trainer.measured.planned
    return trainer.value(objective) != trainer.value(lambda *_: objective(spec, curve.scaled(2.0)))
