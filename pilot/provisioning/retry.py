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
    """Attempts at an operation that may have to be repeated until it has its effect; none before ``again_s``."""

    tries: int = 0
    tried_s: float = -math.inf
    again_s: float = -math.inf

    def due(self, now_s: float) -> bool:
        """Whether the pause since the last attempt is over."""
        return now_s >= self.again_s

    def tried(self, now_s: float, first_s: float) -> None:
        """One more attempt was made, or failed: wait twice as long as the last time."""
        self.tried_s, self.again_s = now_s, now_s + pause_s(first_s, self.tries)
        self.tries += 1

    def worked(self) -> None:
        """Forget the failures."""
        self.tries, self.again_s = 0, -math.inf
