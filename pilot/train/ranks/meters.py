"""What a rank measures of its own time: the rate of its group and the cost of a regroup, its own pace, and how long it
waits for others.
"""

from __future__ import annotations

import time
from collections import deque
from statistics import median

from pilot.protocol import wire

WINDOW = 20
"""Steps whose median is the current rate (FreeTrain's and MalleTrain's monitors need only a recent one)."""
PERIOD_S = 10.0
PERIOD_STEPS = 3
"""A report covers at least this time and this many steps."""


class StepMeter:
    """Rates within a generation, and the stall between two generations.

    ``stall_s`` is the time between a rank's last step before and its first step after the last regroup, minus the
    median step time before; None if there was no step before, or none after yet.
    """

    def __init__(self) -> None:
        self._steps: deque[tuple[float, int]] = deque(maxlen=WINDOW)
        self._last_s: float | None = None
        self._before_s = 0.0
        self._regrouping = False
        self.stall_s: float | None = None

    def regrouped(self) -> None:
        """A new generation begins, or the old one has stopped."""
        if self._steps:
            self._before_s = median(seconds for seconds, _ in self._steps)
        self._steps.clear()
        self._regrouping = True

    def stepped(self, now_s: float, samples: int) -> None:
        """A step of ``samples`` samples (of all ranks) ended."""
        if self._last_s is not None and self._regrouping:
            self.stall_s = max(0.0, now_s - self._last_s - self._before_s)
        elif self._last_s is not None:
            self._steps.append((now_s - self._last_s, samples))
        self._regrouping = False
        self._last_s = now_s

    def rested(self, seconds: float) -> None:
        """The script spent ``seconds`` without steps for its own reasons (such as an evaluation)."""
        if self._last_s is not None:
            self._last_s += seconds

    def samples_per_s(self) -> float | None:
        """Median rate of the last steps of this generation; None before there are any."""
        rates = [samples / seconds for seconds, samples in self._steps if seconds > 0]
        return median(rates) if rates else None


class PaceMeter:
    """Measures how long a rank itself takes for its samples, apart from what it waits for. A step counts from when the
    script asks for its batch (:meth:`begins`) until it is applied (:meth:`applied`), so
    that neither checkpoints nor what the script does between two steps counts. ``waited_s`` is how long the rank has
    waited for others in total.
    """

    def __init__(self, trainer: str) -> None:
        self._trainer = trainer
        self._since_s: float | None = None
        self._began_s: float | None = None
        self._waited_s = 0.0
        self._own_s = 0.0
        self._steps = self._samples = 0

    def idle(self) -> None:
        """No step is under way: a new generation, or something that takes time between two steps."""
        self._began_s = None

    def begins(self, now_s: float, waited_s: float) -> None:
        """A step begins."""
        self._began_s, self._waited_s = now_s, waited_s
        if self._since_s is None:
            self._since_s = now_s

    def applied(self, now_s: float, waited_s: float, samples: int) -> wire.RankStepTimes | None:
        """The step, with ``samples`` of this rank, was applied; returns a report if it is time for one."""
        if self._began_s is None or self._since_s is None:
            return None
        self._own_s += now_s - self._began_s - (waited_s - self._waited_s)
        self._steps += 1
        self._samples += samples
        self._began_s = None
        if now_s - self._since_s < PERIOD_S or self._steps < PERIOD_STEPS:
            return None
        pace = wire.StepTimes(self._steps, self._samples, max(0.0, self._own_s), now_s - self._since_s)
        self._since_s, self._own_s, self._steps, self._samples = None, 0.0, 0, 0
        return wire.RankStepTimes(self._trainer, pace)


class StallTimer:
    """Times one wait at a time. It expires at the site's time-out, whenever the wait has doubled, and when the
    trainer's patience ends. ``ended_s`` is how long all waits that are over have lasted; ``silent_s`` the site's
    time-out.
    """

    def __init__(self, silent_s: float, patience_s: float) -> None:
        self.silent_s = silent_s
        self._patience_s = patience_s
        self._since_s: float | None = None
        self._due_s = silent_s
        self.ended_s = 0.0
        self.summing = False

    def begin(self, summing: bool) -> None:
        """A wait begins; ``summing``: for the sums of a step."""
        self.ended_s += self.waited_s()
        self._since_s, self._due_s, self.summing = time.monotonic(), self.silent_s, summing

    def end(self) -> None:
        """The wait is over."""
        self.ended_s += self.waited_s()
        self._since_s, self.summing = None, False

    def waited_s(self) -> float:
        """How long the wait has lasted; 0 if there is none."""
        return 0.0 if self._since_s is None else time.monotonic() - self._since_s

    def left_s(self) -> float:
        """How long to wait before calling :meth:`is_over` again."""
        return max(0.0, self._due_s - self.waited_s())

    def is_over(self) -> bool:
        """Whether to report now; after returning True, only again when the wait has doubled."""
        if self.waited_s() < self._due_s:
            return False
        later_s = 2 * self._due_s
        self._due_s = self._patience_s if self._due_s < self._patience_s < later_s else later_s
        return True
