"""Whose turn it is to be profiled, and with whose nodes.

Profiles act by pins alone: in every problem a trainer that is profiled has just the count that is measured, and who
lends it nodes has what is left to it. Idle nodes come first: all that share the pool keep their nodes, at least their
minimum. Where that does not do, one profile at a time borrows, from one trainer: that whose last interruption is
longest ago (least recently used, MalleTrain §3.3), never below its minimum. Who cannot have enough trains on what plans
give it until its turn comes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pilot.core.events import GroupFormed, Progress
from pilot.core.ids import TrainerId
from pilot.core.profile import counts, least_top
from pilot.core.trainer import Trainer


def note(now_s: float, trainer: Trainer, event: object) -> str:
    """Take in what happened to ``trainer``; why another plan is needed, "" where none is."""
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
    """The time is over for the count on which ``trainer`` is measured; why another plan is needed, if it is."""
    if trainer is None or trainer.profile.by_s > now_s or trainer.profile.pin is None:
        return ""
    nodes = trainer.profile.pin
    trainer.profile.next(now_s)
    return _measured(trainer, nodes)


def _measured(trainer: Trainer, nodes: int) -> str:
    return f"trainer {trainer.id} was measured on {nodes} node{'' if nodes == 1 else 's'}"


def pins(now_s: float, usable: int, trainers: Sequence[Trainer]) -> dict[TrainerId, int]:
    """The counts that are pinned in a problem of ``usable`` nodes for ``trainers``; who can begin begins."""
    pinned: dict[TrainerId, int] = {}
    for trainer in trainers:
        if trainer.profile.pin is not None:
            _go_on(now_s, usable, trainer, trainers, pinned)
    for trainer in trainers:
        if trainer.profile.wanted and trainer.profile.pin is None:
            _begin(now_s, usable, trainer, trainers, pinned)
    return pinned


def _go_on(
    now_s: float, usable: int, trainer: Trainer, trainers: Sequence[Trainer], pinned: dict[TrainerId, int]
) -> None:
    """Pin it, and who lends it nodes, where it can still have them."""
    profile = trainer.profile
    lender = next((t for t in trainers if t.id == profile.lender), None)
    if lender is not None and len(lender.target) >= lender.spec.min_nodes:  # unless it lost nodes meanwhile
        pinned[lender.id] = lender.spec.fitting(min(profile.lender_nodes, len(lender.target)))
    most = trainer.spec.fitting(usable - _kept(trainer, trainers, pinned))
    profile.shrink(now_s, most, least_top(trainer.spec))
    if profile.lender is None and lender is not None:
        pinned.pop(lender.id, None)
    if profile.pin is not None:
        pinned[trainer.id] = profile.pin


def _begin(
    now_s: float, usable: int, trainer: Trainer, trainers: Sequence[Trainer], pinned: dict[TrainerId, int]
) -> None:
    most = usable - _kept(trainer, trainers, pinned)
    enough = trainer.spec.fitting(most) >= least_top(trainer.spec)
    lender = None if enough else _lender(trainer, trainers, pinned)
    spared = len(lender.target) - lender.spec.min_nodes if lender is not None else 0
    if trainer.spec.fitting(most + spared) < least_top(trainer.spec):
        return
    profile = trainer.profile
    profile.begin(now_s, counts(trainer.spec, most + spared, usable // len(trainers)))
    if profile.pin is None:
        return
    pinned[trainer.id] = profile.pin
    if lender is not None and profile.pin > most:
        pinned[lender.id] = lender.spec.fitting(len(lender.target) - (profile.pin - most))
        profile.borrow(lender.id, pinned[lender.id])


def _kept(trainer: Trainer, others: Sequence[Trainer], pinned: Mapping[TrainerId, int]) -> int:
    """How many nodes all but ``trainer`` keep."""
    return sum(
        pinned.get(t.id, t.profile.pin or max(len(t.target), t.spec.min_nodes)) for t in others if t is not trainer
    )


def _lender(trainer: Trainer, trainers: Sequence[Trainer], pinned: Mapping[TrainerId, int]) -> Trainer | None:
    """Who lends nodes to ``trainer``; None: nobody can, or somebody borrows already."""
    if any(t.profile.lender is not None for t in trainers):
        return None
    able = [t for t in trainers if t is not trainer and t.id not in pinned and len(t.target) > t.spec.min_nodes]
    return min(able, key=lambda t: t.interrupted_s, default=None)
