"""Which samples are behind the current parameters, as ranges (generation, epoch, step, step_end, cursor,
cursor_end).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class LineageRow(NamedTuple):
    """Samples [cursor, cursor_end) of ``epoch`` went into steps [step, step_end) of ``generation``."""

    generation: int
    epoch: int
    step: int
    step_end: int
    cursor: int
    cursor_end: int


class Lineage:
    """The rows of one lineage, in the order of their steps, neighbours merged.

    It is part of the state: who takes over another rank's state, or a checkpoint, takes over its ledger, so no row is
    void.
    """

    def __init__(self, rows: Iterable[Iterable[int]] = ()) -> None:
        self._rows = [LineageRow(*row) for row in rows]

    @property
    def rows(self) -> list[LineageRow]:
        """All rows."""
        return list(self._rows)

    def add(self, generation: int, epoch: int, step: int, cursor: int, cursor_end: int) -> None:
        """Step ``step`` of ``generation`` took the samples [cursor, cursor_end) of ``epoch``."""
        if self._rows:
            last = self._rows[-1]
            if last[:2] == (generation, epoch) and (last.step_end, last.cursor_end) == (step, cursor):
                self._rows[-1] = last._replace(step_end=step + 1, cursor_end=cursor_end)
                return
        self._rows.append(LineageRow(generation, epoch, step, step + 1, cursor, cursor_end))

    def newest(self, count: int) -> list[LineageRow]:
        """The last ``count`` rows."""
        return self._rows[-count:]
