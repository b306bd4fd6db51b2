"""How long a rank has been waiting for the others, and when to report it."""

from __future__ import annotations

import time


class StallTimer:
    """One wait at a time. It is over at the site's time-out, again each time that the wait has doubled, and when the
    trainer's patience is at its end.

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
        self.summing = False

    def begin(self, summing: bool) -> None:
        """The wait begins; ``summing``: for the sums of a step."""
        self._since_s, self._due_s, self.summing = time.monotonic(), self.silent_s, summing

    def end(self) -> None:
        """What was waited for is here."""
        self._since_s, self.summing = None, False

    def waited_s(self) -> float:
        """How long the wait has lasted; 0 where there is none."""
        return 0.0 if self._since_s is None else time.monotonic() - self._since_s

    def left_s(self) -> float:
        """How long to wait before :meth:`is_over` is worth asking."""
        return max(0.0, self._due_s - self.waited_s())

    def is_over(self) -> bool:
        """Whether to say so now; asked once, it is so again when the wait has doubled."""
        if self.waited_s() < self._due_s:
            return False
        later_s = 2 * self._due_s
        self._due_s = self._patience_s if self._due_s < self._patience_s < later_s else later_s
        return True
