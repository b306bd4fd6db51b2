"""How far a training is, and which samples its parameters were trained on, as ranges (generation, epoch, step,
step_end, cursor, cursor_end).
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


@dataclass(slots=True)
class Position:
    """``step``: steps applied so far; ``phase``: how many optimizers of the next step have been stepped, if they are
    stepped separately; ``cursor``: samples of ``epoch`` used so far; ``epoch_steps``: its steps so far; ``samples``: of
    all epochs; ``at_end``: the script is in its code at the end of the epoch; ``met``: how often the ranks had met
    between the last step and that; ``stopped``: there are no more epochs, or steps; ``stopping``: a rank has asked for
    that; ``left``: the ranks have left the loop, and meet no more; ``begun``: the script has reached its first batch;
    ``weight``: the sum of the last step's weights, 0: its samples are the weights (see
    :mod:`pilot.train.steps.weights`), None: there was no step yet. ``parts``: among how many ranks the last step's
    samples were divided, 0: likewise.
    """

    step: int = 0
    epoch: int = 0
    cursor: int = 0
    epoch_steps: int = 0
    samples: int = 0
    at_end: bool = False
    met: int = 0
    stopped: bool = False
    stopping: bool = False
    left: bool = False
    phase: int = 0
    begun: bool = False
    weight: float | None = None
    parts: int = 0


class LineageRow(NamedTuple):
    """Samples [cursor, cursor_end) of ``epoch`` went into steps [step, step_end) of ``generation``."""

    generation: int
    epoch: int
    step: int
    step_end: int
    cursor: int
    cursor_end: int

    def goes_on(self, generation: int, epoch: int, step: int, cursor: int, cursor_end: int) -> bool:
        """Whether this step is its next one. (Not after a rehearsal, which may take fewer samples than other steps.)"""
        steps, samples = self.step_end - self.step, self.cursor_end - self.cursor
        follows = (self.generation, self.epoch, self.step_end, self.cursor_end) == (generation, epoch, step, cursor)
        return follows and (cursor_end - cursor) * steps <= samples


_WIDTH = len(LineageRow._fields)
_STEP_END, _CURSOR_END = (LineageRow._fields.index(name) - _WIDTH for name in ("step_end", "cursor_end"))
"""Positions in the newest row, counted from the end of the array."""


class Lineage:
    """The rows of one lineage, in the order of their steps, with adjacent rows merged.

    It is part of the state: a rank that takes over a state or a checkpoint takes over its ledger, so no row is void. It
    has about one row per epoch and is copied for each checkpoint, so rows are stored as plain numbers, 48 bytes each.
    """

    def __init__(self, rows: Iterable[Iterable[int]] = ()) -> None:
        self._numbers = array("q", chain.from_iterable(rows))

    @property
    def rows(self) -> list[LineageRow]:
        """All rows."""
        return self.newest(len(self._numbers))

    def add(self, generation: int, epoch: int, step: int, cursor: int, cursor_end: int) -> None:
        """Step ``step`` of ``generation`` took the samples [cursor, cursor_end) of ``epoch``."""
        last = LineageRow(*self._numbers[-_WIDTH:]) if self._numbers else None
        if last and last.goes_on(generation, epoch, step, cursor, cursor_end):
            self._numbers[_STEP_END], self._numbers[_CURSOR_END] = step + 1, cursor_end
        else:
            self._numbers.extend((generation, epoch, step, step + 1, cursor, cursor_end))

    def newest(self, count: int) -> list[LineageRow]:
        """The last ``count`` rows."""
        numbers = self._numbers[-_WIDTH * count :]
        return [LineageRow(*numbers[i : i + _WIDTH]) for i in range(0, len(numbers), _WIDTH)]

    def table(self) -> NDArray[np.int64]:
        """A copy, with six numbers per row."""
        return np.array(self._numbers, np.int64).reshape(-1, _WIDTH)
