"""How far a training is; which samples its parameters were trained on, as ranges (generation, epoch, step, step_end,
cursor, cursor_end); and what its ranks agreed on between two steps. All are part of the state, so that newcomers know.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, NamedTuple

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
    samples were divided, 0: likewise. With rounds (:mod:`pilot.submission.seldom`), ``round``: rounds held so far;
    ``back``: samples [start, stop) before the cursor that were put back. All of it is then as of the last round held.
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
    round: int = 0
    back: list[list[int]] = field(default_factory=list)


class LineageRow(NamedTuple):
    """Samples [cursor, cursor_end) of ``epoch`` went into steps [step, step_end) of ``generation``.

    Of a round, ``step`` is that of its beginning, and ``step_end`` the next one's; it has a row for each interval.
    """

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

    def extend(self, rows: Iterable[LineageRow]) -> None:
        """Add the rows of a round, which are not merged."""
        self._numbers.extend(chain.from_iterable(rows))

    def newest(self, count: int) -> list[LineageRow]:
        """The last ``count`` rows."""
        numbers = self._numbers[-_WIDTH * count :]
        return [LineageRow(*numbers[i : i + _WIDTH]) for i in range(0, len(numbers), _WIDTH)]

    def table(self) -> NDArray[np.int64]:
        """A copy, with six numbers per row."""
        return np.array(self._numbers, np.int64).reshape(-1, _WIDTH)


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


METRIC = "PILOT_STUDY_METRIC"
"""The environment variable of a trial with the name of its study's metric."""

KEPT = 256
"""How many of the newest to keep: earlier ones were sent to the coordinator long ago."""

Row = tuple[int, int, float]
"""Number, step, value."""


class MetricReports:
    """A trial's reports of its study's metric; ``metric``: its name, "": there is no study, and nothing is kept.

    Trials are compared at a rung by their n-th report, so reports are counted. They are part of the state, so a rank
    that takes it over continues the count. Of several reports between the same two steps only the last counts, because
    a rank that repeats that part of the script reports again.
    """

    def __init__(self, metric: str, rows: Iterable[Iterable[float]] = ()) -> None:
        self.metric = metric
        self.rows: list[Row] = [(int(number), int(step), float(value)) for number, step, value in rows]

    @property
    def count(self) -> int:
        """How many reports there were."""
        return self.rows[-1][0] if self.rows else 0

    def note(self, step: int, values: Mapping[str, float]) -> None:
        """The script reported ``values`` after ``step`` steps."""
        if not self.metric or self.metric not in values:
            return
        if self.rows and self.rows[-1][1] == step:
            self.rows[-1] = (*self.rows[-1][:2], values[self.metric])
        else:
            self.rows.append((self.count + 1, step, values[self.metric]))
            del self.rows[:-KEPT]

    def since(self, number: int) -> list[tuple[int, float]]:
        """(number, value) of the reports after number ``number``."""
        return [(count, value) for count, _, value in self.rows if count > number]
