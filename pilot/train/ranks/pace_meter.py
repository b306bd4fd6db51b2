"""Measures how long a rank itself takes for its samples, apart from what it waits for. Time is an argument."""

from __future__ import annotations

from pilot.io import wire

PERIOD_S = 10.0
PERIOD_STEPS = 3
"""A report covers at least this time and this many steps."""


class PaceMeter:
    """A step counts from when the script asks for its batch (:meth:`begins`) until it is applied (:meth:`applied`), so
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

    def applied(self, now_s: float, waited_s: float, samples: int) -> wire.RankPace | None:
        """The step, with ``samples`` of this rank, was applied; returns a report if it is time for one."""
        if self._began_s is None or self._since_s is None:
            return None
        self._own_s += now_s - self._began_s - (waited_s - self._waited_s)
        self._steps += 1
        self._samples += samples
        self._began_s = None
        if now_s - self._since_s < PERIOD_S or self._steps < PERIOD_STEPS:
            return None
        pace = wire.Pace(self._steps, self._samples, max(0.0, self._own_s), now_s - self._since_s)
        self._since_s, self._own_s, self._steps, self._samples = None, 0.0, 0, 0
        return wire.RankPace(self._trainer, pace)
