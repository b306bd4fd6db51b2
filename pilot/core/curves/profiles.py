"""Which trainer is profiled next, and on which nodes.

Profiles work through pins only: in every problem a profiled trainer has exactly the count being measured, and its
lender has what remains. Idle nodes come first: all trainers keep their nodes, at least their minimum. If that is not
enough, one profile at a time borrows from one trainer: the one whose last interruption is longest ago (least recently
used, MalleTrain §3.3), never below its minimum. A trainer that cannot get enough nodes trains on what plans give it
until its turn comes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from pilot.core.curves.curve import RATES, Curve
from pilot.core.curves.measured import RescaleCosts
from pilot.core.curves.profile import allowed
from pilot.core.curves.worth import Outlook, Prices, best_count
from pilot.core.events import GroupFormed, Progress
from pilot.core.ids import TrainerId
from pilot.core.plan.objective import Objective
from pilot.core.trainer.spec import Profiling
from pilot.core.trainer.trainer import Trainer

CHANGES_KEPT = 20
"""The time between two changes of the pool is averaged over about this many."""

CALM_S = 3600.0
"""A longer time between two changes of the pool counts as this much in their mean."""

SHARE = 0.01
"""Profiles take at most this share of a trainer's node-time."""

YOUNG_S = 600.0
"""A trainer whose remaining work is not known is expected to train as long as it has, and at least this long."""

FORESEEN_S = 86400.0
"""No trainer is expected to train for longer."""


@dataclass(slots=True)
class Changes:
    """Changes of the pool: when the last one was, and the mean time between two."""

    last_s: float = 0.0
    mean_s: float = 600.0

    def note(self, now_s: float) -> None:
        """Record that the pool changed."""
        self.mean_s += (min(now_s - self.last_s, CALM_S) - self.mean_s) / CHANGES_KEPT
        self.last_s = now_s

    def calm_s(self, now_s: float) -> float:
        """How long the pool is expected not to change: the mean time, or as long as it has not changed."""
        return max(self.mean_s, now_s - self.last_s)


def note(now_s: float, trainer: Trainer, event: object) -> str:
    """Record what happened to ``trainer``; returns why another plan is needed ("": none is)."""
    profile, group = trainer.profile, trainer.group
    if group is None or not (profile.wanted and isinstance(event, GroupFormed | Progress)):
        return ""
    nodes = len(group.members)
    if isinstance(event, GroupFormed):
        profile.came_to(now_s, nodes)
        return ""
    rate = event.samples_per_s if trainer.proof.node not in group.members else None  # a check slows it down
    if not (rate and profile.report(now_s, nodes, rate)):
        return ""
    trainer.measured.refresh()
    return _measured(trainer, nodes)


def give_up(now_s: float, trainer: Trainer | None) -> str:
    """The time for the count on which ``trainer`` is measured is over, or for not considering one; returns why another
    plan is needed, if it is."""
    if trainer is None or trainer.profile.due_s > now_s:
        return ""
    nodes = trainer.profile.pin
    trainer.measured.refresh()
    if nodes is None:
        trainer.profile.by_s = math.inf
        return f"trainer {trainer.id} may be worth measuring on another node count"
    reached = trainer.profile.there
    trainer.profile.next(now_s)
    if not reached and trainer.profile.pin is None:
        trainer.profile.rest(now_s + YOUNG_S, trainer.measured.counts)
    return _measured(trainer, nodes)


def remains_s(now_s: float, trainer: Trainer, nodes: int) -> float:
    """How long ``trainer`` will train on ``nodes`` nodes: until its work is done, if known; else as long as it has."""
    left_s, curve = trainer.left_s(), trainer.measured.planned
    if left_s is None:
        return max(YOUNG_S, trainer.measured.trained_s(now_s))
    return min(FORESEEN_S, left_s * curve.single_node_rate() / max(RATES[0], curve.at(nodes)))


def _measured(trainer: Trainer, nodes: int) -> str:
    return f"trainer {trainer.id} was measured on {nodes} node{'' if nodes == 1 else 's'}"


@dataclass(frozen=True)
class Profiler:
    """Fixes the counts of profiled trainers and their lenders in one problem: of ``usable`` nodes for ``trainers``.

    What a profile is worth depends on the ``costs`` of rescales, for how long the pool is expected not to change,
    and the value of trainers in plans: the ``objective`` and the ``weights`` of trials. ``pinned``: the fixed counts.
    """

    now_s: float
    usable: int
    trainers: Sequence[Trainer]
    costs: RescaleCosts
    calm_s: float
    forward_s: float
    objective: Objective
    weights: Mapping[TrainerId, float]
    pinned: dict[TrainerId, int] = field(default_factory=dict)

    @cached_property
    def _prices(self) -> Prices:
        return Prices(self.trainers, self.usable, self._value)

    def pins(self) -> dict[TrainerId, int]:
        """The fixed counts; profiles that can begin do so."""
        for trainer in self.trainers:
            if trainer.profile.pin is not None:
                self._go_on(trainer)
        for trainer in self.trainers:
            if trainer.stays_at() is None and trainer.profile.considers(self.now_s, trainer.measured.counts):
                self._begin(trainer)
        return self.pinned

    def _go_on(self, trainer: Trainer) -> None:
        """Pin the trainer and its lender, if it can still have the nodes."""
        profile = trainer.profile
        lender = next((t for t in self.trainers if t.id == profile.lender), None)
        if lender is not None and len(lender.target) >= lender.spec.min_nodes:  # unless it lost nodes meanwhile
            self.pinned[lender.id] = lender.spec.fitting(min(profile.lender_nodes, len(lender.target)))
        least = min(len(trainer.target), trainer.spec.min_nodes)  # it keeps these, even if others wait for their first
        most = trainer.spec.fitting(max(least, self._most(trainer)))
        profile.shrink(self.now_s, most)
        if profile.lender is None and lender is not None:
            self.pinned.pop(lender.id, None)
        if profile.pin is not None:
            self.pinned[trainer.id] = profile.pin

    def _begin(self, trainer: Trainer) -> None:
        most, lender, profile = self._most(trainer), self._lender(trainer), trainer.profile
        spared = len(lender.target) - lender.spec.min_nodes if lender is not None else 0
        if trainer.spec.profile is Profiling.INVERSE:
            self._begin_all(trainer, most, spared)
        elif (count := self._count(trainer, most, spared)) is not None:
            profile.begin(self.now_s, [count])
        else:
            rest_s = max(YOUNG_S, trainer.measured.trained_s(self.now_s), self.calm_s)
            profile.rest(self.now_s + rest_s, trainer.measured.counts)
        if profile.pin is None:
            return
        self.pinned[trainer.id] = profile.pin
        if lender is not None and profile.pin > most:
            self.pinned[lender.id] = lender.spec.fitting(len(lender.target) - (profile.pin - most))
            profile.borrow(lender.id, self.pinned[lender.id])

    def _begin_all(self, trainer: Trainer, most: int, spared: int) -> None:
        """Measure it on every count, the largest first, if it can have two or more: on up to ``most`` nodes, or if that
        is too few, ``spared`` more from a lender."""
        spec, known = trainer.spec, trainer.profile.known
        can = allowed(spec, most) if spec.fitting(most) > spec.min_nodes else allowed(spec, most + spared)
        if len(can) > 1:
            trainer.profile.begin(self.now_s, [count for count in can[::-1] if count not in known])

    def _count(self, trainer: Trainer, most: int, spared: int) -> int | None:
        """The count that is most worth measuring, if one is. It may have ``most`` nodes without a lender, and as many
        more as one ``spared``. The first rate comes by itself."""
        spec, measured, held = trainer.spec, trainer.measured, len(trainer.target)
        possible, price = allowed(spec, self.usable), self._prices.to_others(trainer.id)
        if not possible or price is None or not measured.points:
            return None
        nodes = max(held, spec.fitting(max(spec.min_nodes, self.usable // len(self.trainers))))
        lasts_s = remains_s(self.now_s, trainer, nodes)
        outlook = Outlook(
            points=measured.points,
            curve=measured.planned,
            value=lambda curve: spec.objective_curve or self.objective(spec, curve),
            allowed=possible,
            most=most + spared,
            held=held,
            idle=max(0, most - held),
            alone=len(self.trainers) == 1,
            rescale_up_s=measured.rescale_s(self.costs, up=True),
            rescale_down_s=measured.rescale_s(self.costs, up=False),
            forward_s=self.forward_s,
            lasts_s=min(lasts_s, self.calm_s),
            price=price,
            doubt=measured.doubt,
            most_node_s=SHARE * (trainer.usage.until(self.now_s) + lasts_s * nodes) - trainer.profile.node_s,
        )
        return best_count(outlook)

    def _value(self, trainer: Trainer) -> Curve:
        """The worth of ``trainer`` per second, by node count."""
        return trainer.value(self.objective).scaled(self.weights.get(trainer.id, 1.0))

    def _most(self, trainer: Trainer) -> int:
        """The nodes that all other trainers leave for ``trainer``."""
        kept = {t.id: t.profile.pin or max(len(t.target), t.spec.min_nodes) for t in self.trainers if t is not trainer}
        return self.usable - sum(self.pinned.get(name, nodes) for name, nodes in kept.items())

    def _lender(self, trainer: Trainer) -> Trainer | None:
        """The trainer that lends nodes to ``trainer``; None: none can, or another trainer is borrowing already."""
        if any(t.profile.lender is not None for t in self.trainers):
            return None
        others = [t for t in self.trainers if t is not trainer and t.id not in self.pinned]
        able = [t for t in others if len(t.target) > t.spec.min_nodes]
        return min(able, key=lambda t: t.interrupted_s, default=None)
