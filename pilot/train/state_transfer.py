"""Which rank sends the state to which when a generation starts: a pure decision, the same on all ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass

NOTHING = -1


@dataclass(frozen=True, slots=True)
class Holding:
    """What a rank holds: a state after ``step``, last confirmed in ``generation`` (``NOTHING``: none yet), of which
    run (see :mod:`pilot.train.identity`). After that step come ``phase`` optimizers' of the next one; or the ends of
    epochs, and ``met`` meetings in this one.
    """

    generation: int
    step: int
    fingerprint: int
    epoch: int = 0
    met: int = 0
    phase: int = 0

    @property
    def progress(self) -> tuple[int, int, int, int, int]:
        """What is compared."""
        return self.generation, self.step, self.phase, self.epoch, self.met

    def row(self) -> list[int]:
        """For the gather."""
        return list(astuple(self))


@dataclass(frozen=True, slots=True)
class Spreading:
    """``root`` gives its state to ``takers``. ``fresh``: nobody holds one, so ``root`` first loads or begins one."""

    root: int
    takers: tuple[int, ...]
    fresh: bool


def who_spreads(table: Sequence[Holding]) -> Spreading:
    """The most advanced rank (of the newest generation, then of the highest step, ..., then the lowest) gives to all
    that differ.
    """
    best = max(holding.progress for holding in table)
    fresh = best[0] == NOTHING
    root = next(rank for rank, holding in enumerate(table) if holding.progress == best)
    takers = (rank for rank, holding in enumerate(table) if rank != root and (fresh or holding.progress != best))
    return Spreading(root, tuple(takers), fresh)
