"""Measures the rate and the cost of a regroup from the times at which steps end. Time is an argument."""

from __future__ import annotations

from collections import deque
from statistics import median

WINDOW = 20
"""Steps whose median is the current rate (FreeTrain's and MalleTrain's monitors need only a recent one)."""


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
