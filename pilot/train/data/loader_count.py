"""How many loader processes a training needs: the smallest number with which it does not wait for batches.

Counts 0 (the training process loads by itself), 1, 2, 4, … are tried in turn, on the training's own batches, until it
no longer waits. If more processes do not help, the smallest count with nearly the best rate is used. (FLEET, appendix
B.3, measures preprocessors at 1, 2, 4, … cores before the training, and takes the smallest number that meets the
demand.)

When the group's size changes, this is repeated, because a rank's batches may be larger or smaller then. A training that
begins to wait later, for example because the other ranks no longer wait for theirs, gets more processes. If no count
helped and the rate changes (epochs of larger samples), all are measured again, each time after twice as many batches:
what was measured in one epoch may have been compared with what was measured in another. If processes
fail (a dataset may work in the training process only, or memory be short), a smaller count that worked is used. Time is
an argument here.
"""

from __future__ import annotations

from dataclasses import dataclass

WAITS = 0.05
"""A training that waits for batches for less than this share of its time counts as not waiting."""
WAITS_AGAIN = 0.1
"""One that waits for more than this share counts as waiting again."""
ANOTHER_RATE = 2.0
"""A rate that differs by this factor from what was measured: data has become slower or faster to load."""
BETTER = 1.05
"""A rate that is higher by less than this factor is none."""
WINDOW = 20
"""Batches that are measured, at least."""


@dataclass(slots=True)
class _Measured:
    """``batches`` came in ``seconds``, of which the training waited ``waited_s``."""

    batches: int = 0
    seconds: float = 0.0
    waited_s: float = 0.0

    @property
    def waits(self) -> float:
        """Share of the time."""
        return self.waited_s / self.seconds if self.seconds else 0.0

    @property
    def per_s(self) -> float:
        return self.batches / self.seconds if self.seconds else 0.0

    def __str__(self) -> str:
        return f"{self.per_s:.3g} batches/s, waiting {self.waits:.0%}"


class LoaderCount:
    """``now``: the count to use.

    Parameters
    ----------
    first : the count to begin with, 0 or 1
    most : the largest one
    """

    def __init__(self, first: int, most: int) -> None:
        self.now = first
        self._most = most
        self._tried: dict[int, _Measured] = {}
        self._window = _Measured()
        self._worked: set[int] = set()
        self._pass_over = 0
        self._settled = False
        self._fixed = False
        self._expected: _Measured | None = None
        self._patience = 1

    def begins(self) -> None:
        """Processes start: the first batches come late, and then as many at once as there are processes."""
        self._pass_over = self.now + 1

    def resized(self) -> None:
        """The group has another size: what was measured holds no more."""
        self._tried, self._window = {}, _Measured()
        self._settled = self._fixed = False
        self._expected = None

    def failed(self, why: str) -> str | None:
        """With the count to use no more batches come. What follows, in words; None: no smaller one is known to work."""
        fewer = [count for count in self._worked if count < self.now]
        if not fewer:
            return None
        gave_up, self.now = self.now, max(fewer)
        self._most, self._window, self._fixed, self._expected = self.now, _Measured(), True, None
        return f"{self.now} loader {_processes(self.now)}, since {gave_up} failed: {why}"

    def took(self, waited_s: float, used_s: float) -> str | None:
        """A batch came after ``waited_s``, and the training was busy with it for ``used_s``.

        What was found, in words, where the count is the one to stay with.
        """
        if self._fixed:
            return None
        if self._pass_over:
            self._pass_over -= 1
            return None
        window = self._window
        window.batches += 1
        window.seconds += waited_s + used_s
        window.waited_s += waited_s
        if window.batches < (WINDOW + 2 * self.now) * (self._patience if self._expected else 1):
            return None
        self._window = _Measured()
        self._worked.add(self.now)
        if self._expected is not None:
            if not 1 / ANOTHER_RATE < window.per_s / self._expected.per_s < ANOTHER_RATE:
                self._patience *= 2
                self.resized()
            return None
        if not self._settled:
            self._tried[self.now] = window
            return self._judge(window)
        if window.waits > WAITS_AGAIN:
            self._settled, self._tried = False, {self.now: window}
            return self._judge(window)
        return None

    def _judge(self, measured: _Measured) -> str | None:
        if measured.waits <= WAITS:
            self._settled = True
            return self._told("")
        if self.now < self._most and self._still_rises():
            self.now = min(max(1, 2 * self.now), self._most)
            return None
        best = max(one.per_s for one in self._tried.values())
        self.now = min(count for count, one in self._tried.items() if one.per_s * BETTER >= best)
        self._expected = self._tried[self.now]
        return self._told("; training still waits for data")

    def _still_rises(self) -> bool:
        """Whether one of the last two counts was faster than all before. (A first process may not be: it is one more,
        and one less that loads.)
        """
        rates = [one.per_s for _, one in sorted(self._tried.items())]
        return len(rates) < 3 or max(rates[-2:]) > BETTER * max(rates[:-2])

    def _told(self, but: str) -> str:
        tried = "; ".join(f"{count}: {one}" for count, one in sorted(self._tried.items()))
        return f"{self.now} loader {_processes(self.now)}, of at most {self._most}{but} (measured with {tried})"


def _processes(count: int) -> str:
    return "process" if count == 1 else "processes"
