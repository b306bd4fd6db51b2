"""Tells of a loss, a learning rate or the like that depends on the clock (``lr = peak * (1 - (time.time() - begun) /
budget)``). Each node has its own, and in a run that resumes it has gone on.
"""

from __future__ import annotations

import time
from datetime import datetime

from pilot.train.looks.clocks import CLOCKS
from pilot.train.script import loop_code, refusal
from pilot.train.script.step_uses import StepUses

_CLOCKS = (
    *CLOCKS,
    *(time.time_ns, time.monotonic_ns, time.perf_counter_ns, time.process_time_ns),
    *(vars(datetime)[name] for name in ("now", "utcnow")),
)


class ByTheClock:
    """Looks for one session."""

    def __init__(self) -> None:
        self._told = False

    def look(self, uses: StepUses) -> None:
        """Tell once. ``uses``: what the steps compute with."""
        if self._told:
            return
        read = ((path, loop_code.value_of(frame, *path.split("."))) for frame, path in uses.paths())
        if clock := next((path for path, value in read if any(value is one for one in _CLOCKS)), ""):
            self._told = True
            refusal.note(
                f"the script's loss, or how it steps, depends on the clock ({clock}): ranks would train with other"
                " numbers and be stopped, or differ, and in a run that resumes the clock has gone on: compute it from"
                " session.steps"
            )
