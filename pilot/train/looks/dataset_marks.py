"""What the loop's dataset has, as values that the script may change: its numbers, generators, labels and weights of
samples, functions, other objects (a transform), and what these have.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from types import FrameType
from typing import Any

from torch.utils.data import Subset, TensorDataset

from pilot.train.data.dataset_values import set_by_reading, values_of
from pilot.train.data.training_loader import TrainingLoader
from pilot.train.looks.marks import ARRAYS, DEPTH, FUNCTIONS, Place, mark_of, marks_in
from pilot.train.script import called
from pilot.train.script.objects import WITH_ITEMS, inner
from pilot.train.script.plain_marks import PLAIN, numbers_and_generators


class DatasetMarks:
    """Of one session's."""

    def __init__(self) -> None:
        self._dataset: object = None
        self._indices: list[Subset[Any]] = []
        self._first: dict[Place, Any] = {}
        self._last: dict[Place, Any] = {}

    def begin(self, dataset: object) -> None:
        """The loop over it begins."""
        while isinstance(dataset, Subset):
            self._indices.append(dataset)
            dataset = dataset.dataset
        self._dataset = dataset
        self._first = self._marks()

    def look(self, *, at_end: bool) -> dict[Place, Any]:
        """What changes if one of them does. ``at_end``: of an epoch; for what that does to objects that the dataset has
        see :class:`~pilot.train.looks.dataset_changes.DatasetChanges`.
        """
        self._last = self._marks()
        return {place: mark for place, mark in self._last.items() if not (at_end and _is_within(place))}

    def epoch_begins(self, frames: Sequence[FrameType], head: int, *, by_epoch: bool) -> dict[Place, Any]:
        """What it has in an epoch's first step: a process that joins has the same, but for what a turn of the loop
        before has set, which others do not set (``if epoch == 3``). ``by_epoch``: whether looks come at epochs' ends.
        """
        now = self._marks()
        if called.changes_under_equality(frames, head, self.has):
            return {
                place: mark if by_epoch and mark != self._last.get(place, mark) else self._first.get(place, mark)
                for place, mark in now.items()
            }
        return now

    def has(self, value: object) -> bool:
        """Whether ``value`` is the dataset, or a loader or a part of it (a ``Subset``)."""
        while isinstance(value, TrainingLoader | Subset):
            value = getattr(value, "dataset", None)
        return value is self._dataset

    def lists(self, known: set[int]) -> dict[str, Any]:
        """Its arrays, apart from what the session has (``known``), and its lists with the arrays and numbers in these;
        also the indices of a ``Subset``. (None: a place for a sample that was not read yet.)
        """
        dataset = self._dataset
        kept: list[tuple[Any, Any]]
        kept = [("tensors", dataset.tensors)] if isinstance(dataset, TensorDataset) else inner(dataset)
        kept += [("indices", one.indices) for one in self._indices]
        its = [(f"dataset.{name}", value) for name, value in kept if isinstance(value, (*ARRAYS, list, tuple))]
        marks = chain.from_iterable(marks_in(name, value, known, (), DEPTH) for name, value in its)
        return {path: mark for path, mark in marks if mark is not None}

    def _marks(self) -> dict[Place, Any]:
        """Not of what it sets by itself while it gives samples."""
        dataset = self._dataset
        found = {name: mark for name, one in inner(dataset) if (mark := _mark_of_attribute(one)) is not None}
        found |= numbers_and_generators(dataset)
        kind: type = type(dataset)
        its_own = set_by_reading(kind)
        within = {f"dataset.{name}": mark for name, mark in found.items() if name not in its_own} | {
            one.name: one.mark for (_, name), one in values_of(dataset).items() if name not in set_by_reading(one.kind)
        }
        return {(id(dataset), name): mark for name, mark in within.items()}


def _mark_of_attribute(value: Any) -> Any:
    """Of one that is no number, list or dict."""
    if isinstance(value, (*ARRAYS, *FUNCTIONS)):
        return mark_of(value, is_variable=True)
    if value is None:
        return "None"
    return None if isinstance(value, (*WITH_ITEMS, *PLAIN)) else (type(value).__qualname__, id(value))


def _is_within(place: Place) -> bool:
    """Whether it is of something that the dataset has."""
    return "[" in place[1] or place[1].count(".") > 1
