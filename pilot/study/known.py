"""A trial as the coordinator knows it."""

from __future__ import annotations

import msgspec

from pilot.core.study import Parameters


class KnownTrial(msgspec.Struct, frozen=True):
    """``told``: the trial is over; then ``value`` is what it reported at the first rung, None if it failed."""

    number: int
    parameters: Parameters
    told: bool = False
    value: float | None = None
