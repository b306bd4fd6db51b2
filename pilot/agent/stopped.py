"""How long processes have been stopped (state T), from looks at them. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass(slots=True)
class Stops:
    """A process that is seen stopped at every look is taken to have been stopped in between."""

    _since_s: dict[int, float] = field(default_factory=dict)

    def look(self, now_s: float, stopped: Iterable[int]) -> dict[int, float]:
        """Those that are ``stopped`` now, by pid, with the time since they were first seen so."""
        self._since_s = {pid: self._since_s.get(pid, now_s) for pid in stopped}
        return {pid: now_s - since_s for pid, since_s in self._since_s.items()}
