"""Which of a script's values are times, as what it prints of its speed is computed from (``t0 = time.time()``)."""

from __future__ import annotations

import time

_BEGAN_S = time.time()
_RECENT_S = 600.0
"""Of clocks that do not count from 1970, whose numbers another value may have."""


def is_a_time(value: object) -> bool:
    """Whether a clock has shown this number, in seconds, since this process trains."""
    if type(value) is not float or value.is_integer():
        return False
    recent = (now - _RECENT_S <= value <= now for now in (time.monotonic(), time.perf_counter()))
    return _BEGAN_S <= value <= time.time() or any(recent)
