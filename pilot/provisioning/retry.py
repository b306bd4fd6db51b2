"""Retries with growing pauses."""

from __future__ import annotations

import math
from dataclasses import dataclass

LONGEST_PAUSE_S = 600.0


def pause_s(first_s: float, failures: int) -> float:
    """The pause after ``failures`` earlier failures: twice as long each time, up to a limit."""
    return min(LONGEST_PAUSE_S, first_s * 2.0 ** min(failures, 20))


@dataclass(slots=True)
class Retry:
    """Attempts at an operation that may have to be repeated until it has its effect."""

    tries: int = 0
    again_s: float = -math.inf

    def due(self, now_s: float) -> bool:
        """Whether the pause since the last attempt is over."""
        return now_s >= self.again_s

    def tried(self, now_s: float, first_s: float) -> None:
        """One more attempt was made."""
        self.again_s = now_s + pause_s(first_s, self.tries)
        self.tries += 1


@dataclass(slots=True)
class Backoff:
    """Growing pauses while things fail, none as soon as they work."""

    first_s: float
    failures: int = 0
    failed_s: float = -math.inf
    resume_s: float = 0.0

    def failed(self, now_s: float) -> None:
        """One more failure: wait twice as long as the last time."""
        self.resume_s = now_s + pause_s(self.first_s, self.failures)
        self.failures += 1
        self.failed_s = now_s

    def worked(self) -> None:
        """Forget the failures."""
        self.failures = 0
        self.resume_s = 0.0
