"""Meters of a rank's time: the rate of its group, the stall of a regroup, its own pace, and its waits for others."""

from __future__ import annotations

import time
from collections import deque
from statistics import median

from pilot.protocol import wire
from pilot.protocol.fields import StepTimes
from pilot.train.state.shares import Shares

WINDOW = 20
"""The current rate is the median of this many steps (FreeTrain's and MalleTrain's monitors need a recent rate)."""
ROUNDS = 5
"""The current rate of training in rounds is the median of this many."""
PERIOD_S = 10.0
PERIOD_STEPS = 3
"""A report covers at least this time and this many steps."""


class StepMeter:
    """Measures the rate within a generation, and the stall between two generations. In rounds stalls are those between
    inner steps, which have no samples of the group's, and rates are those of whole rounds.

    ``stall_s`` is the time from a rank's last step before to its first step after the last regroup, minus the median
    step time before; None until there is a step on both sides.
    """

    def __init__(self) -> None:
        self._steps: deque[tuple[float, int]] = deque(maxlen=WINDOW)
        self._rounds: deque[float] = deque(maxlen=ROUNDS)
        self._last_s: float | None = None
        self._before_s = 0.0
        self._regrouping = False
        self.stall_s: float | None = None

    def regrouped(self) -> None:
        """Note that a new generation begins, or the old one has stopped."""
        if self._steps:
            self._before_s = median(seconds for seconds, _ in self._steps)
        self._steps.clear()
        self._rounds.clear()
        self._regrouping = True

    def stepped(self, now_s: float, samples: int) -> None:
        """Note the end of a step of ``samples`` samples (of all ranks; 0: an inner step)."""
        if self._last_s is not None and self._regrouping:
            self.stall_s = max(0.0, now_s - self._last_s - self._before_s)
        elif self._last_s is not None:
            self._steps.append((now_s - self._last_s, samples))
        self._regrouping = False
        self._last_s = now_s

    def held(self, samples: int, seconds: float) -> None:
        """Note a round of this generation, with ``samples`` of all ranks."""
        self._rounds.append(samples / seconds)

    def rested(self, seconds: float) -> None:
        """Exclude ``seconds`` that the script spent without steps for its own reasons (such as an evaluation)."""
        if self._last_s is not None:
            self._last_s += seconds

    def samples_per_s(self) -> float | None:
        """Return the median rate of the last steps or rounds of this generation; None before there are any."""
        steps = [samples / seconds for seconds, samples in self._steps if samples and seconds > 0]
        rates = [*self._rounds] or steps
        return median(rates) if rates else None


class PaceMeter:
    """Measures how long a rank itself takes for its samples, without its waits for others. A step counts from the
    script's request of its batch (:meth:`begins`) until it is applied (:meth:`applied`), so neither checkpoints nor the
    script's code between two steps count. ``waited_s`` is the total time of waits for others; ``last_s`` is the time
    for the last step, 0: it was not measured.
    """

    def __init__(self, trainer: str, shares: Shares) -> None:
        self._trainer, self._shares = trainer, shares
        self._since_s: float | None = None
        self._began_s: float | None = None
        self._waited_s = 0.0
        self._own_s = self.last_s = 0.0
        self._steps = self._samples = 0

    def idle(self) -> None:
        """Do not count the time until the next step: a generation starts, or something else takes time."""
        self._began_s = None

    def begins(self, now_s: float, waited_s: float) -> None:
        """Note that a step begins."""
        self._began_s, self._waited_s = now_s, waited_s
        if self._since_s is None:
            self._since_s = now_s

    def applied(self, now_s: float, waited_s: float, samples: int) -> wire.RankStepTimes | None:
        """Note that the step, with ``samples`` of this rank, was applied; return a report if it is time for one."""
        self.last_s = 0.0
        if self._began_s is None or self._since_s is None:
            return None
        self.last_s = max(0.0, now_s - self._began_s - (waited_s - self._waited_s))
        self._own_s += self.last_s
        self._steps += 1
        self._samples += samples
        self._began_s = None
        if now_s - self._since_s < PERIOD_S or self._steps < PERIOD_STEPS:
            return None
        measured = self._steps, self._samples, self._own_s, now_s - self._since_s
        pace = StepTimes(*measured, self._shares.equal, self._shares.limit_loss)
        self._since_s, self._own_s, self._steps, self._samples = None, 0.0, 0, 0
        return wire.RankStepTimes(self._trainer, pace)


ASK_S = 1.5
"""After this time the coordinator asks whether the others are there."""


class StallTimer:
    """Times one wait at a time. It expires after :data:`ASK_S`, at the site's time-out ``silent_s``, whenever the wait
    has doubled since, and when the trainer's patience ends. ``ended_s`` is the total time of all waits that are over.
    """

    def __init__(self, silent_s: float, patience_s: float) -> None:
        self.silent_s = silent_s
        self._patience_s = patience_s
        self._since_s: float | None = None
        self._due_s = 0.0
        self.ended_s = 0.0
        self.summing = False

    def begin(self, summing: bool) -> None:
        """Begin a wait; ``summing``: for the sums of a step."""
        self.ended_s += self.waited_s()
        self._since_s, self._due_s, self.summing = time.monotonic(), min(ASK_S, self.silent_s), summing

    def end(self) -> None:
        """End the wait."""
        self.ended_s += self.waited_s()
        self._since_s, self.summing = None, False

    def waited_s(self) -> float:
        """Return how long the wait has lasted; 0 if there is none."""
        return 0.0 if self._since_s is None else time.monotonic() - self._since_s

    def left_s(self) -> float:
        """Return how long to wait before calling :meth:`is_over` again."""
        return max(0.0, self._due_s - self.waited_s())

    def is_over(self) -> bool:
        """Return whether to report the wait now; the next time is when it has doubled."""
        if self.waited_s() < self._due_s:
            return False
        later_s = 2 * self._due_s if self._due_s >= self.silent_s else self.silent_s
        self._due_s = self._patience_s if self._due_s < self._patience_s < later_s else later_s
        return True
