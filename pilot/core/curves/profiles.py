"""Which trainer is profiled next, and on which nodes.

Profiles work through pins only: in every problem a profiled trainer has exactly the count being measured, and its
lender has what remains. Idle nodes come first: all trainers keep their nodes, at least their minimum. If that is not
enough, one profile at a time borrows from one trainer: the one whose last interruption is longest ago (least recently
used, MalleTrain §3.3), never below its minimum. A trainer that cannot get enough nodes trains on what plans give it
until its turn comes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pilot.core.curves.curve import Curve
from pilot.core.curves.curve_model import Priors
from pilot.core.curves.measured import RescaleCosts
from pilot.core.curves.profile import allowed, least_top
from pilot.core.curves.worth import Outlook, best_counts, counts_samples, node_price
from pilot.core.events import GroupFormed, Progress
from pilot.core.ids import TrainerId
from pilot.core.plan.objective import Objective
from pilot.core.trainer.spec import Profiling
from pilot.core.trainer.trainer import Trainer

CHANGES_KEPT = 20
"""The time between two changes of the pool is averaged over about this many."""

USEFUL_CHANGES = 5
"""After this many changes of the pool, plans have reached other counts of a trainer by themselves."""

USEFUL_MOST_S = 3600.0
"""A profile counts for no longer than this, however calm the pool is: trainers end."""


@dataclass(slots=True)
class Changes:
    """Changes of the pool: when the last one was, and the mean time between two."""

    last_s: float = 0.0
    mean_s: float = 600.0

    def note(self, now_s: float) -> None:
        """Record that the pool changed."""
        self.mean_s += (min(now_s - self.last_s, USEFUL_MOST_S) - self.mean_s) / CHANGES_KEPT
        self.last_s = now_s

    def useful_s(self, now_s: float) -> float:
        """For how many seconds a profile is useful: until plans would have measured as much by themselves."""
        return min(USEFUL_CHANGES * max(self.mean_s, now_s - self.last_s), USEFUL_MOST_S)


def note(now_s: float, trainer: Trainer, event: object) -> str:
    """Record what happened to ``trainer``; returns why another plan is needed ("": none is)."""
    profile, group = trainer.profile, trainer.group
    if group is None or not (profile.wanted and isinstance(event, GroupFormed | Progress)):
        return ""
    nodes = len(group.members)
    if isinstance(event, GroupFormed):
        profile.came_to(now_s, nodes)
        return ""
    rate = event.samples_per_s
    return _measured(trainer, nodes) if rate and profile.report(now_s, nodes, rate) else ""


def give_up(now_s: float, trainer: Trainer | None) -> str:
    """The time for the count on which ``trainer`` is measured is over; returns why another plan is needed, if it is."""
    if trainer is None or trainer.profile.by_s > now_s or trainer.profile.pin is None:
        return ""
    nodes = trainer.profile.pin
    trainer.profile.next(now_s)
    return _measured(trainer, nodes)


def _measured(trainer: Trainer, nodes: int) -> str:
    return f"trainer {trainer.id} was measured on {nodes} node{'' if nodes == 1 else 's'}"


@dataclass(frozen=True, slots=True)
class Profiler:
    """Fixes the counts of profiled trainers and their lenders in one problem: of ``usable`` nodes for ``trainers``.

    What a profile is worth depends on the ``priors`` of curves, the ``costs`` of rescales, for how long it is useful,
    and the value of trainers in plans: the ``objective`` and the ``weights`` of trials. ``pinned``: the fixed counts.
    """

    now_s: float
    usable: int
    trainers: Sequence[Trainer]
    priors: Priors
    costs: RescaleCosts
    useful_s: float
    objective: Objective
    weights: Mapping[TrainerId, float]
    pinned: dict[TrainerId, int] = field(default_factory=dict)

    def pins(self) -> dict[TrainerId, int]:
        """The fixed counts; profiles that can begin do so."""
        for trainer in self.trainers:
            if trainer.profile.pin is not None:
                self._go_on(trainer)
        for trainer in self.trainers:
            waits = trainer.profile.wanted and trainer.profile.pin is None and trainer.stays_at() is None
            if waits and not self._early(trainer):
                self._begin(trainer)
        return self.pinned

    def _early(self, trainer: Trainer) -> bool:
        """Whether it is too early to know what a profile of ``trainer`` is worth."""
        blind = not trainer.measured.points and trainer.spec.profile is Profiling.AUTO
        return blind and counts_samples(trainer, self.objective)

    def _go_on(self, trainer: Trainer) -> None:
        """Pin the trainer and its lender, if it can still have the nodes."""
        profile = trainer.profile
        lender = next((t for t in self.trainers if t.id == profile.lender), None)
        if lender is not None and len(lender.target) >= lender.spec.min_nodes:  # unless it lost nodes meanwhile
            self.pinned[lender.id] = lender.spec.fitting(min(profile.lender_nodes, len(lender.target)))
        least = min(len(trainer.target), trainer.spec.min_nodes)  # it keeps these, even if others wait for their first
        most = trainer.spec.fitting(max(least, self._most(trainer)))
        profile.shrink(self.now_s, most, least_top(trainer.spec))
        if profile.lender is None and lender is not None:
            self.pinned.pop(lender.id, None)
        if profile.pin is not None:
            self.pinned[trainer.id] = profile.pin

    def _begin(self, trainer: Trainer) -> None:
        most, least = self._most(trainer), least_top(trainer.spec)
        lender = None if trainer.spec.fitting(most) >= least else self._lender(trainer)
        spared = len(lender.target) - lender.spec.min_nodes if lender is not None else 0
        if trainer.spec.fitting(most + spared) < least:
            return
        profile = trainer.profile
        profile.begin(self.now_s, self._counts(trainer, most, spared))
        if profile.pin is None:
            return
        self.pinned[trainer.id] = profile.pin
        if lender is not None and profile.pin > most:
            self.pinned[lender.id] = lender.spec.fitting(len(lender.target) - (profile.pin - most))
            profile.borrow(lender.id, self.pinned[lender.id])

    def _counts(self, trainer: Trainer, most: int, spared: int) -> tuple[int, ...]:
        """The counts to measure it on, the largest first: every one, or those that are worth most; it may have ``most``
        nodes without a lender, and ``spared`` more from one."""
        measured, held = trainer.measured, len(trainer.target)
        can = allowed(trainer.spec, most + spared)
        if trainer.spec.profile is Profiling.INVERSE:
            return can[::-1]
        outlook = Outlook(
            points=measured.points,
            priors=self.priors,
            allowed=can,
            share=self.usable / len(self.trainers),
            held=held,
            idle=max(0, most - held),
            alone=len(self.trainers) == 1,
            rescale_up_s=measured.rescale_s(self.costs, up=True),
            rescale_down_s=measured.rescale_s(self.costs, up=False),
            lasts_s=self.useful_s,
            price=node_price(trainer, self.trainers, self.usable, self._value),
        )
        return best_counts(outlook)

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
