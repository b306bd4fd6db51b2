"""A rate limit: an average per second, and a burst."""

from __future__ import annotations


class Allowance:
    """``rate_per_s`` units a second, at most ``burst`` at once. Time is an argument, and begins at ``now_s``."""

    __slots__ = ("_burst", "_counted_s", "_left", "_rate_per_s")

    def __init__(self, rate_per_s: float, burst: float, now_s: float) -> None:
        self._rate_per_s, self._burst = rate_per_s, burst
        self._left, self._counted_s = burst, now_s

    def allows(self, now_s: float, units: float = 1.0) -> bool:
        """Take ``units`` if they are left now; returns whether they were."""
        self._grow(now_s)
        if self._left < units:
            return False
        self._left -= units
        return True

    def owes_s(self, now_s: float, units: float) -> float:
        """Take ``units`` in any case; returns the time until they are made up for, or 0."""
        self._grow(now_s)
        self._left -= units
        return max(0.0, -self._left / self._rate_per_s)

    def _grow(self, now_s: float) -> None:
        self._left = min(self._burst, self._left + (now_s - self._counted_s) * self._rate_per_s)
        self._counted_s = now_s
