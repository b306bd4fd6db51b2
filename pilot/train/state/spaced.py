"""When to repeat something that costs time."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager


class Spaced:
    """Due the ``first`` times, and then so rarely that it takes at most one of ``parts`` parts of the time: epochs may
    be as short as a step.
    """

    def __init__(self, parts: int, first: int = 0) -> None:
        self._parts = parts
        self._first = first
        self._due_s = 0.0

    def is_due(self) -> bool:
        """Whether it is time again."""
        return self._first > 0 or time.monotonic() >= self._due_s

    @contextmanager
    def doing(self) -> Iterator[None]:
        """Around what is done."""
        began_s = time.monotonic()
        yield
        now_s = time.monotonic()
        self._first -= 1
        self._due_s = max(now_s, self._due_s) + self._parts * (now_s - began_s)
