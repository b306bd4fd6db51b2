"""Which of a script's values are times, as what it prints of its speed is computed from (``t0 = time.time()``), or how
long something took (``self.iter_dt = now - before``).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from types import FrameType

from pilot.train.script.bytecode import instructions
from pilot.train.script.loop_code import value_of
from pilot.train.script.statements import statements_in

_BEGAN_S = time.time()
CLOCKS = (time.time, time.monotonic, time.perf_counter, time.process_time)
_RECENT_S = 600.0
"""Of clocks that do not count from 1970, whose numbers another value may have."""


def is_a_time(value: object) -> bool:
    """Whether a clock has shown this number, in seconds, since this process trains."""
    if type(value) is not float or value.is_integer():
        return False
    recent = (now - _RECENT_S <= value <= now for now in (time.monotonic(), time.perf_counter()))
    return _BEGAN_S <= value <= time.time() or any(recent)


def durations(frames: Sequence[FrameType]) -> set[str]:
    """The variables and attributes that these functions set only from times; no sums of such."""
    found, others = set[str](), set[str]()
    for frame in frames:
        for one in statements_in(instructions(frame.f_code)):
            read = [path for path in one.reads if not any(each.startswith(f"{path}.") for each in one.reads | one.sets)]
            if read:
                (found if all(_is_of_time(frame, path) for path in read) else others).update(one.sets)
    return found - others


def _is_of_time(frame: FrameType, path: str) -> bool:
    """A time, a clock, or the module of clocks."""
    value = value_of(frame, *path.split("."))
    return any(value is one for one in (time, *CLOCKS)) or is_a_time(value)
