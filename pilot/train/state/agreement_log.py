"""What the ranks of a trainer agreed on between two steps. It is part of the state, so that newcomers know."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any, NamedTuple

END_OF_EPOCH = 1 << 32
END_OF_LOOP = END_OF_EPOCH + 1
TRAINING = END_OF_EPOCH + 2
"""Topics of meetings, apart from evaluations, whose topics are smaller numbers."""

STOP = "asked to stop"
"""In the sums at the end of an epoch: how many ranks want no more epochs."""

Sums = dict[str, float]
Place = tuple[int, int]
"""(epoch, step): between which two steps the ranks meet."""


class Agreement(NamedTuple):
    """A meeting at (``epoch``, ``step``) about ``topic``: the sums by name of the ranks' contributions."""

    epoch: int
    step: int
    topic: int
    sums: Sums

    @property
    def place(self) -> Place:
        """Where it was held."""
        return self.epoch, self.step


class AgreementLog:
    """The entries of the newest two places, in order.

    Two, because a rank that missed the end of a meeting may find the others one place further.
    """

    def __init__(self, entries: Iterable[Iterable[Any]] = ()) -> None:
        self._entries = [Agreement(*entry) for entry in entries]

    def add(self, entry: Agreement) -> None:
        """Record an agreement."""
        self._entries.append(entry)
        kept = sorted({entry.place for entry in self._entries})[-2:]
        self._entries = [entry for entry in self._entries if entry.place in kept]

    def of(self, place: Place, topic: int) -> list[Sums]:
        """What was agreed on ``topic`` at ``place``."""
        return [entry.sums for entry in self._entries if (entry.place, entry.topic) == (place, topic)]

    def count(self, place: Place) -> int:
        """How many agreements there were at ``place``."""
        return sum(entry.place == place for entry in self._entries)

    def topics(self, place: Place, first: int) -> Counter[int]:
        """How often each topic is among the ``first`` agreements at ``place``."""
        return Counter([entry.topic for entry in self._entries if entry.place == place][:first])

    def rows(self) -> list[list[Any]]:
        """For the state that is saved and sent."""
        return [list(entry) for entry in self._entries]


def total(brought: Iterable[Sums]) -> Sums:
    """The sums by name, in float64 and in the given order, so that the same ``brought`` gives the same result
    everywhere."""
    sums: Sums = {}
    for one in brought:
        for name, value in one.items():
            sums[name] = sums.get(name, 0.0) + value
    return sums
