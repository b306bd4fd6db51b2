"""Times that grow as something fails again and again: pauses between attempts, and how long a node is set aside."""

from __future__ import annotations

MOST_DOUBLINGS = 20


def growing_s(first_s: float, times: int, longest_s: float) -> float:
    """Return ``first_s``, doubled ``times`` times, but at most ``longest_s``."""
    return min(longest_s, first_s * 2.0 ** min(times, MOST_DOUBLINGS))
