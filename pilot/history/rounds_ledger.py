"""The lineage of nodes that train in rounds (:mod:`pilot.submission.seldom`), and the proof that its samples were each
used once per epoch.

A round has a row for each interval of samples that it committed, all with the round's steps. Intervals leave gaps where
samples were put back, which later rounds of the epoch fill. So the rounds must follow each other, their intervals must
be disjoint, and those of an epoch that ended must cover it. A generation voids whole rounds. One that only nodes that
are gone have held may end after the next generation begins, until its leader reports how its nodes closed that round.

Rows are numbers in arrays, because a long training has hundreds of thousands.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pilot.core.events import LedgerRange
from pilot.core.ids import Generation
from pilot.history.ledger import NUMBERS, where
from pilot.history.words import counted

GENERATION, EPOCH, STEP, STEP_END, START, STOP = COLUMNS = range(6)
"""The columns of rows; those before :data:`START` are the round's."""

Rows = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class RoundLineage:
    """The rows of the rounds behind the current parameters, in the order of steps and samples. ``voided_steps``: those
    of other rounds; ``crossed``: a round within which a later generation began, although others follow.
    """

    rows: Rows
    voided_steps: int
    crossed: str

    @classmethod
    def of(
        cls, reported: array[int], voids: Mapping[Generation, int | None], earlier: list[LedgerRange]
    ) -> RoundLineage:
        """The lineage of the ``reported`` rows, in any order and some of them repeatedly, six numbers each. ``voids``:
        from which step on each generation is void; ``earlier``: the steps before the nodes trained in rounds."""
        rows = np.frombuffer(reported, np.int64).reshape(-1, len(COLUMNS))
        rows = _distinct(_sorted(rows, GENERATION, STEP, STEP_END, EPOCH, START, STOP))
        generations, places = np.unique(rows[:, GENERATION], return_inverse=True)
        limits = [voids.get(Generation(int(one))) for one in generations]
        void_from = np.array([np.iinfo(np.int64).max if limit is None else limit for limit in limits], np.int64)[places]
        begins, ends = rows[:, STEP] < void_from, rows[:, STEP_END] <= void_from
        last = rows[begins & ends, STEP_END].max(initial=0)
        at = _first(begins & ~ends & (rows[:, STEP] < last))
        crosses = "" if at is None else f"{_named(rows[at])}: a later generation began within that round"
        recorded, rows = _steps(rows), np.compress(begins & ends, rows, axis=0)
        voided_steps = recorded - _steps(rows)
        if earlier:
            rows = np.concatenate([[NUMBERS(record) for record in earlier], rows])
        rows = _sorted(rows, STEP, STEP_END, GENERATION, EPOCH, START)
        return cls(rows, voided_steps, crosses)

    @property
    def count(self) -> int:
        """How many rounds there are."""
        return len(_rounds(self.rows))

    @property
    def what(self) -> str:
        """It in words."""
        generations = len(np.unique(self.rows[:, GENERATION]))
        return f"{counted(self.count, 'round')} of {counted(generations, 'generation')}"

    def _epochs(self) -> list[Rows]:
        """The rows of each epoch."""
        begins = np.flatnonzero(np.diff(self.rows[:, EPOCH], prepend=-1))
        return np.split(self.rows, begins)[1:]

    def epochs(self) -> list[LedgerRange]:
        """What it has of each epoch as one record, from sample 0 on, as if it had no gaps."""
        found = []
        for rows in self._epochs():
            generation, epoch, step, *_ = rows[0].tolist()
            samples = int((rows[:, STOP] - rows[:, START]).sum())
            found.append(LedgerRange(Generation(generation), epoch, step, int(rows[-1, STEP_END]), 0, samples))
        return found

    def end(self, epoch: int) -> int:
        """The sample at which its rows of ``epoch`` end."""
        return int(self.rows[self.rows[:, EPOCH] == epoch, STOP].max())

    def gap(self, sizes: Mapping[int, int], ends: bool) -> str:
        """Why it does not cover epochs 0, 1, … of ``sizes`` samples each, with all samples once; if it ``ends``, to
        the end of the last one."""
        if problem := self.crossed or _out_of_order(self.rows, _rounds(self.rows)):
            return problem
        epochs = {int(rows[0, EPOCH]): rows for rows in self._epochs()}
        problems = (
            _uncovered(epochs.get(epoch, self.rows[:0]), epoch, sizes.get(epoch, 0), ends or epoch < max(epochs))
            for epoch in sorted(epochs.keys() | sizes.keys())
        )
        return next(filter(None, problems), "")


def _sorted(rows: Rows, *columns: int) -> Rows:
    return np.take(rows, np.lexsort([rows[:, column] for column in reversed(columns)]), axis=0)


def _distinct(rows: Rows, columns: int | None = None) -> Rows:
    """The first of ``rows`` that follow each other with the same numbers, in the first ``columns`` or all."""
    changes = np.ones(len(rows), np.bool_)
    changes[1:] = (rows[1:, :columns] != rows[:-1, :columns]).any(axis=1)
    return np.compress(changes, rows, axis=0)


def _rounds(rows: Rows) -> Rows:
    """The first row of each round."""
    return _distinct(rows, START)


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


def _uncovered(rows: Rows, epoch: int, size: int, is_over: bool) -> str:
    """Samples that an epoch has twice, that it should not have, or that it lacks although it ``is_over``."""
    rows = _sorted(rows, START)
    starts, stops = np.append(rows[:, START], size), np.append(0, rows[:, STOP])
    if (at := _first(starts < stops)) is not None:
        where_else = f"some of them also in {_named(rows[at])}" if at < len(rows) else f"beyond the epoch's {size}"
        return f"{_named(rows[at - 1])}: {where_else}"
    if is_over and (at := _first(starts > stops)) is not None:
        return f"epoch {epoch}: no round committed samples {stops[at]} to {starts[at] - 1} of its {size}"
    return ""


def _first(wrong: NDArray[np.bool_]) -> int | None:
    return int(np.argmax(wrong)) if wrong.any() else None


def _named(row: Rows) -> str:
    generation, *rest = row.tolist()
    record = LedgerRange(Generation(generation), *rest)
    return f"{where(record)}, samples {record.cursor} to {record.cursor_end - 1}"
