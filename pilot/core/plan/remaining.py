"""The work that trainers have left, in seconds on one node.

It is known where a trainer's loop has a known length and its rate was measured. Otherwise it is *rough*: what the
pool's finished trainers used (the median; if none has finished, of what those will have used whose work is known) and
this one has not used yet; where it has used more than that, as much again as it has used so far.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median

from pilot.core.commands import Outcome
from pilot.core.ids import TrainerId
from pilot.core.trainer.trainer import Trainer


@dataclass(frozen=True, slots=True)
class Remaining:
    """Seconds on one node."""

    seconds: float
    rough: bool = False


def usual_s(now_s: float, trainers: Sequence[Trainer]) -> float | None:
    """The node-seconds that the finished ones of ``trainers`` used, the median; if there are none, that those will have
    used whose remaining work is known; None: there are none of these, either."""
    used_s = [trainer.usage.used_s for trainer in trainers if trainer.outcome is Outcome.FINISHED]
    if not used_s:
        known = ((trainer, trainer.left_s()) for trainer in trainers if trainer.open)
        used_s = [trainer.usage.until(now_s) + left_s for trainer, left_s in known if left_s is not None]
    return median(used_s) if used_s else None


def remaining(now_s: float, trainer: Trainer, usual: float | None) -> Remaining | None:
    """What ``trainer`` has left, where finished trainers used ``usual``; None: nothing is known."""
    if (left_s := trainer.left_s()) is not None:
        return Remaining(left_s)
    used_s = trainer.usage.until(now_s)
    if usual is not None and usual > used_s:
        return Remaining(usual - used_s, rough=True)
    return Remaining(used_s, rough=True) if used_s > 0 else None


def completion_weights(
    now_s: float, known: Sequence[Trainer], trainers: Sequence[Trainer], least_s: float
) -> dict[TrainerId, float]:
    """The weights of ``trainers`` in plans that are to end them soon on average: 1 / what each has left, so that a plan
    is worth the sum of (rate / work left) over its trainers, and short work comes first.

    Nothing counts as less than ``least_s``, the time for which a plan is made. A trainer of which nothing is known
    counts as the mean of the others. ``known``: all trainers of the pool.
    """
    usual = usual_s(now_s, known)
    found = {trainer.id: remaining(now_s, trainer, usual) for trainer in trainers}
    seconds = {name: max(least_s, left.seconds) for name, left in found.items() if left is not None}
    other = fmean(seconds.values()) if seconds else 1.0
    return {name: 1.0 / seconds.get(name, other) for name in found}


def both(one: Mapping[TrainerId, float], other: Mapping[TrainerId, float]) -> dict[TrainerId, float]:
    """The products of two kinds of weights; one that is missing is 1."""
    return {name: one.get(name, 1.0) * other.get(name, 1.0) for name in {**one, **other}}
