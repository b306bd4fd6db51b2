"""Failures of scheduler commands: retries with growing pauses, and trouble that is reported when it begins, changes
and ends, not each time it occurs.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from pilot.core.growing import growing_s

LONGEST_PAUSE_S = 600.0


@dataclass(slots=True)
class Retry:
    """Attempts at an operation that may have to be repeated until it has its effect; none before ``again_s``."""

    tries: int = 0
    tried_s: float = -math.inf
    again_s: float = -math.inf

    def due(self, now_s: float) -> bool:
        """Whether the pause since the last attempt is over."""
        return now_s >= self.again_s

    def tried(self, now_s: float, first_s: float, most_s: float = LONGEST_PAUSE_S) -> None:
        """One more attempt was made, or failed: wait twice as long as the last time, and at most ``most_s``."""
        self.tried_s, self.again_s = now_s, now_s + growing_s(first_s, self.tries, most_s)
        self.tries += 1

    def worked(self) -> None:
        """Forget the failures."""
        self.tries, self.again_s = 0, -math.inf


Call = Literal["poll", "answer", "submit", "cancel", "pilots"]

_OVER: dict[Call, str] = {
    "poll": "the scheduler answers again",
    "answer": "the scheduler's answers are in order again",
    "submit": "the scheduler accepts pilots again",
    "cancel": "the scheduler cancels jobs again",
    "pilots": "pilots join again",
}
"""What is reported when the trouble with a call is over."""


@dataclass(frozen=True, slots=True)
class Troubled:
    """Trouble with the scheduler or with pilots began, changed or ended, as described in ``text``."""

    text: str


class Troubles:
    """The trouble with each kind of call, empty if there is none; ``report`` is called with changes."""

    def __init__(self, report: Callable[[Troubled], None]) -> None:
        self._report = report
        self._texts: dict[Call, str] = dict.fromkeys(_OVER, "")

    @property
    def text(self) -> str:
        """All trouble, in one line."""
        return "; ".join(text for text in self._texts.values() if text)

    def set(self, call: Call, text: str) -> None:
        """The trouble with ``call`` is ``text`` now."""
        if self._texts[call] != text:
            self._texts[call] = text
            self.tell(text or _OVER[call])

    def tell(self, text: str) -> None:
        """Report something that is no lasting trouble."""
        self._report(Troubled(text))
