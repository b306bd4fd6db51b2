"""How long a rank has been waiting for the others, and when to report it."""

from __future__ import annotations

import time


class StallTimer:
    """Times one wait at a time. It expires at the site's time-out, whenever the wait has doubled, and when the
    trainer's patience ends. ``ended_s`` is how long all waits that are over have lasted.

    Parameters
    ----------
    silent_s : the site's time-out
    patience_s : the trainer's
    """

    def __init__(self, silent_s: float, patience_s: float) -> None:
        self.silent_s = silent_s
        self._patience_s = patience_s
        self._since_s: float | None = None
        self._due_s = silent_s
        self.ended_s = 0.0
        self.summing = False

    def begin(self, summing: bool) -> None:
        """A wait begins; ``summing``: for the sums of a step."""
        self.ended_s += self.waited_s()
        self._since_s, self._due_s, self.summing = time.monotonic(), self.silent_s, summing

    def end(self) -> None:
        """The wait is over."""
        self.ended_s += self.waited_s()
        self._since_s, self.summing = None, False

    def waited_s(self) -> float:
        """How long the wait has lasted; 0 if there is none."""
        return 0.0 if self._since_s is None else time.monotonic() - self._since_s

    def left_s(self) -> float:
        """How long to wait before calling :meth:`is_over` again."""
        return max(0.0, self._due_s - self.waited_s())

    def is_over(self) -> bool:
        """Whether to report now; after returning True, only again when the wait has doubled."""
        if self.waited_s() < self._due_s:
            return False
        later_s = 2 * self._due_s
        self._due_s = self._patience_s if self._due_s < self._patience_s < later_s else later_s
        return True
