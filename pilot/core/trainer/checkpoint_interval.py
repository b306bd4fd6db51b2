"""How often a trainer writes a checkpoint by itself.

If a complete checkpoint fits into the grace between a notice and the end of a node, the state is written then, and the
site's interval is only a precaution against crashes. If not, everything since the last checkpoint is lost whenever all
of the trainer's nodes go at once; as long as one stays, nothing is lost. The interval then follows from how often that
happens (Young, CACM 17(9), 1974, eq. 10; Daly, FGCS 22(3), 2006, eq. 5 without its small terms):

    interval = sqrt(2 · time of a checkpoint · mean time between such losses)

Checkpoints are written while training continues, so they cost less than the formula assumes, which errs on the safe
side.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from pilot.core.commands import Command, SetCheckpointInterval
from pilot.core.trainer.trainer import Trainer

MARGIN_S = 2.0
"""How much of the grace passes before the write begins: the notice travels, the ranks agree on a step."""

LEAST_S = 5.0
"""The shortest interval."""

MOST_WRITING = 0.1
"""A trainer writes for at most this fraction of the time."""

CHANGE_RATIO = 1.25
"""A worker gets a new interval only if it differs from the current one by more than this factor."""


@dataclass(frozen=True, slots=True)
class CheckpointInterval:
    """A trainer's interval, and why."""

    site_interval_s: float  #: of the site
    grace_s: float  #: of the site
    write_s: float | None  #: the measured time in which one rank writes the complete state; None: not known yet
    trained_s: float  #: how long the trainer has trained
    wipeouts: int  #: how often it lost all of its nodes at once in that time
    end_in_s: float = math.inf  #: when the last of its nodes leaves; infinite unless the ends of all are known

    @property
    def fits(self) -> bool:
        """Whether the state can be written after a notice. Assumed until measured."""
        return self.write_s is None or self.write_s + MARGIN_S <= self.grace_s

    @property
    def mean_time_between_s(self) -> float:
        """Mean time between losses of all nodes. Counts one more than was seen: the next may be imminent."""
        return self.trained_s / (self.wipeouts + 1)

    @property
    def interval_s(self) -> float:
        """Time between two checkpoints: at most the site's. If all nodes leave at known times, the last checkpoint must
        be complete by then.
        """
        if self.write_s is None or self.fits:
            return self.site_interval_s
        young_s = math.sqrt(2 * self.write_s * self.mean_time_between_s)
        usual_s = max(young_s, LEAST_S, self.write_s / MOST_WRITING)
        return min(usual_s, max(LEAST_S, self._time_to_begin_s), self.site_interval_s)

    @property
    def _time_to_begin_s(self) -> float:
        """Time until writing must begin, to be complete when the last node leaves."""
        return self.end_in_s - (self.write_s or 0.0) - MARGIN_S

    def reason(self) -> str:
        """Why it has this interval."""
        if self.write_s is None:
            return "the site's interval, until it is known how long writing takes"
        writing = f"writing takes {_seconds(self.write_s, 2)}"
        if self.fits:
            return f"{writing}, which fits into the grace period of {self.grace_s:g} s, so the site's interval holds"
        times = "once" if self.wipeouts == 1 else f"{self.wipeouts} times"
        if self.interval_s == max(LEAST_S, self._time_to_begin_s):
            return (
                f"{writing}, too long for the grace of {self.grace_s:g} s, and its nodes leave in {self.end_in_s:.0f} s"
            )
        lost = f"in {_span(self.trained_s)} of training it lost all its nodes {times}"
        return f"{writing}, too long for the grace period of {self.grace_s:g} s, and {lost} (Young/Daly)"

    def sentence(self, *, in_rounds: bool = False) -> str:
        """The interval and its reason in a sentence, for ``pilot explain``."""
        when = "at the end of rounds, at most one in" if in_rounds else "every"
        return f"It writes a checkpoint {when} {_seconds(self.interval_s, 3)}: {self.reason()}."


def _seconds(seconds: float, digits: int) -> str:
    """Rounded to ``digits`` significant digits, but without an exponent."""
    return f"{seconds:.{digits}g} s" if seconds < 99 else f"{seconds:.0f} s"


def _span(seconds: float) -> str:
    return f"{seconds / 3600:.1f} h" if seconds >= 3600 else f"{seconds:.0f} s"


def adjust_interval(trainer: Trainer, wanted: CheckpointInterval) -> list[Command]:
    """Set the interval of the training group's leader, if it has changed."""
    leader = trainer.members[0] if trainer.members else None
    if leader is None or leader not in trainer.workers:
        return []
    worker, interval_s = trainer.workers[leader], wanted.interval_s
    current_s = worker.interval_s or wanted.site_interval_s
    if max(current_s, interval_s) <= CHANGE_RATIO * min(current_s, interval_s):
        return []
    worker.interval_s = interval_s
    return [SetCheckpointInterval(trainer.id, leader, interval_s, wanted.reason())]
