"""The lineage of nodes that train in rounds (:mod:`pilot.submission.seldom`), and the proof that its samples were each
used once per epoch.

A round has a row for each interval of samples that it committed, all with the round's steps. Intervals leave gaps where
samples were put back, which later rounds of the epoch fill. So the rounds must follow each other, their intervals must
be disjoint, and those of an epoch that ended must cover it. A generation begins with a round, so it voids whole rounds.

Rows are numbers in arrays, because a long training has hundreds of thousands.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from pilot.core.events import LedgerRange
from pilot.core.ids import Generation
from pilot.history.ledger import NUMBERS, Extent, StepLineage, where
from pilot.history.words import counted

GENERATION, EPOCH, STEP, STEP_END, START, STOP = range(6)
"""The columns of rows; those before :data:`START` are the round's."""

Rows = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class RoundLineage:
    """The rows of the rounds behind the current parameters, in the order of steps and samples; see
    :class:`~pilot.history.ledger.StepLineage`."""

    rows: Rows
    voided_steps: int
    disputed: str

    how: ClassVar[str] = "disjoint"

    @classmethod
    def of(cls, reported: array[int], voids: Mapping[Generation, int | None], earlier: StepLineage) -> RoundLineage:
        """The lineage of the ``reported`` rows, in any order and some of them repeatedly, six numbers each. ``voids``:
        from which step on each generation is void; ``earlier``: the steps before the nodes trained in rounds."""
        rows = _once(np.frombuffer(reported, np.int64).reshape(-1, 6))
        generations, places = np.unique(rows[:, GENERATION], return_inverse=True)
        limits = [voids.get(Generation(int(one))) for one in generations]
        void_from = np.array([np.iinfo(np.int64).max if limit is None else limit for limit in limits], np.int64)[places]
        counts = rows[:, STEP] < void_from
        across = _first(counts & (rows[:, STEP_END] > void_from))
        crosses = "" if across is None else f"{_named(rows[across])}: a later generation began within that round"
        recorded, rows = _steps(rows), np.compress(counts, rows, axis=0)
        voided_steps = earlier.voided_steps + recorded - _steps(rows)
        if earlier.records:
            rows = np.concatenate([[NUMBERS(record) for record in earlier.records], rows])
        order = np.lexsort([rows[:, column] for column in (START, EPOCH, GENERATION, STEP_END, STEP)])
        return cls(rows[order], voided_steps, earlier.disputed or crosses)

    @property
    def rounds(self) -> int:
        """How many rounds there are."""
        return len(_rounds(self.rows))

    @property
    def what(self) -> str:
        """It in words."""
        generations = len(np.unique(self.rows[:, GENERATION]))
        return f"{counted(self.rounds, 'round')} of {counted(generations, 'generation')}"

    @property
    def steps(self) -> int:
        """The step after its last one."""
        return int(self.rows[-1, STEP_END]) if len(self.rows) else 0

    def _epochs(self) -> list[Rows]:
        """The rows of each epoch."""
        begins = np.flatnonzero(np.diff(self.rows[:, EPOCH], prepend=-1))
        return np.split(self.rows, begins)[1:]

    def extents(self) -> list[Extent]:
        """What it has of each epoch."""
        found = []
        for rows in self._epochs():
            end, samples = rows[:, STOP].max(), (rows[:, STOP] - rows[:, START]).sum()
            found.append(Extent(int(rows[0, EPOCH]), int(rows[-1, STEP]), int(end), int(samples), batch=0))
        return found

    def under_way(self, step: int) -> int | None:
        """The epoch that is under way when ``step`` comes next; None: it begins an epoch, or is not in the lineage."""
        at = int(np.searchsorted(self.rows[:, STEP], step))
        around = {int(epoch) for epoch in self.rows[max(0, at - 1) : at + 1, EPOCH]}
        return around.pop() if 0 < at < len(self.rows) and len(around) == 1 else None

    def gap(self, sizes: Mapping[int, int], ends: bool) -> str:
        """Why it does not cover epochs 0, 1, … of ``sizes`` samples each, with all samples once; if it ``ends``, to
        the end of the last one."""
        return (
            self.disputed
            or _out_of_order(self.rows, _rounds(self.rows))
            or _used_twice(self.rows)
            or self._incomplete(sizes, ends)
        )

    def _incomplete(self, sizes: Mapping[int, int], ends: bool) -> str:
        """An epoch that is longer than its size, or over and shorter."""
        epochs = {int(rows[0, EPOCH]): rows for rows in self._epochs()}
        for epoch in sorted(epochs.keys() | sizes.keys()):
            rows, size = epochs.get(epoch, self.rows[:0]), sizes.get(epoch, 0)
            if (at := _first(rows[:, STOP] > size)) is not None:
                return f"{_named(rows[at])}: beyond the epoch's {size}"
            start, stop = _hole(rows, size)
            if start < stop and (ends or epoch < max(epochs)):
                return f"epoch {epoch}: no round committed samples {start} to {stop - 1} of its {size}"
        return ""


def _once(rows: Rows) -> Rows:
    """``rows``, each once, in the order of generations and steps."""
    keys = (STOP, START, EPOCH, STEP_END, STEP, GENERATION)
    return _distinct(rows[np.lexsort([rows[:, column] for column in keys])], STOP + 1)


def _rounds(rows: Rows) -> Rows:
    """The first row of each round."""
    return _distinct(rows, START)


def _distinct(rows: Rows, columns: int) -> Rows:
    """The first of those that follow each other with the same numbers in the first ``columns``."""
    changes = np.ones(len(rows), np.bool_)
    changes[1:] = (rows[1:, :columns] != rows[:-1, :columns]).any(axis=1)
    return np.compress(changes, rows, axis=0)


def _steps(rows: Rows) -> int:
    rounds = _rounds(rows)
    return int((rounds[:, STEP_END] - rounds[:, STEP]).sum())


def _out_of_order(rows: Rows, rounds: Rows) -> str:
    """A row without steps or samples, or a round that does not follow the one before it."""
    if (at := _first((rows[:, STEP_END] <= rows[:, STEP]) | (rows[:, STOP] <= rows[:, START]))) is not None:
        return f"{_named(rows[at])}: no steps, or no samples"
    next_steps, epochs = np.append(0, rounds[:-1, STEP_END]), np.diff(rounds[:, EPOCH], prepend=0)
    if (at := _first((rounds[:, STEP] != next_steps[: len(rounds)]) | (epochs < 0) | (epochs > 1))) is not None:
        before = f"after {_named(rounds[at - 1])}, " if at else ""
        return f"{_named(rounds[at])}: {before}step {next_steps[at]} was next"
    return ""


def _used_twice(rows: Rows) -> str:
    """Two intervals with the same samples."""
    rows = rows[np.lexsort([rows[:, START], rows[:, EPOCH]])]
    same = (rows[1:, EPOCH] == rows[:-1, EPOCH]) & (rows[1:, START] < rows[:-1, STOP])
    at = _first(same)
    return "" if at is None else f"{_named(rows[at])}: some of them also in {_named(rows[at + 1])}"


def _hole(rows: Rows, size: int) -> tuple[int, int]:
    """The first samples of an epoch that its disjoint ``rows`` do not have, [start, stop)."""
    rows = rows[np.argsort(rows[:, START])]
    starts, stops = np.append(rows[:, START], size), np.append(0, rows[:, STOP])
    at = int(np.argmax(starts > stops))
    return int(stops[at]), int(starts[at])


def _first(wrong: NDArray[np.bool_]) -> int | None:
    return int(np.argmax(wrong)) if wrong.any() else None


def _named(row: Rows) -> str:
    generation, *rest = row.tolist()
    record = LedgerRange(Generation(generation), *rest)
    return f"{where(record)}, samples {record.cursor} to {record.cursor_end - 1}"
