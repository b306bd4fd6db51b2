"""Tells of lists and arrays of a dataset that the script changes from what they were in the epoch before: shuffled in
place at an epoch's beginning, relabelled at its end; and of numbers and tensors, also of its transforms, that it
changes at an epoch's beginning from what they are, by ``+=`` or the like, or at its end. A process that joins has them
as they are before the loop.

What a beginning makes anew, by a rule from the epoch's number, is the same there. What a dataset puts into its lists
while it gives samples (those that it has read) does not count: only what happens between two passes over the loader.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Iterator, Sequence
from types import FrameType
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset, Subset

from pilot.train.data.dataset_values import (
    GIVE,
    NUMBERS,
    Place,
    Value,
    changed_by_reading,
    held_by,
    is_looked_at,
    set_by_reading,
    values_of,
    whole_of,
)
from pilot.train.data.training_loader import TrainingLoader
from pilot.train.looks.marks import DEPTH, marks_in
from pilot.train.looks.spaced import Spaced
from pilot.train.script import attribute_code, called, refusal
from pilot.train.script.objects import inner
from pilot.train.script.statements import refilled
from pilot.train.state.training import Training

_PARTS = 1000
_FIRST_LOOKS = 18
"""Looks take one of so many parts of the time, but for the first ones."""
_SHOWN = 5
_DEPTH = 3
_HOLD = (list, tuple, dict, set, deque, bytearray)
_MARKS = (bool, int, float, list)
_MODE = "training"
"""Of a transform that is a module."""

Kept = dict[str, tuple[Any, Any]]
"""By name: a list or array, and its items as they were."""


class DatasetChanges:
    """Looks for one session. ``training``: what it knows."""

    def __init__(self, training: Training) -> None:
        self._training = training
        self._dataset: object = None
        self._spaced = Spaced(_PARTS, _FIRST_LOOKS)
        self._looks = False
        self._at_end: Kept = {}
        self._at_beginning: Kept = {}
        self._values: dict[Place, Value] = {}
        self._values_at_end: dict[Place, Value] = {}
        self._marks_at_end: dict[str, Any] = {}
        self._changed: set[Place] = set()
        self._labelled: set[str] = set()
        self._told: set[str] = set()

    def begin(self, dataset: object) -> None:
        """The loop over it begins."""
        self._dataset = dataset

    def pass_ends(self) -> None:
        """The loop over the loader has ended."""
        if not self._training.on_restore and self._spaced.is_due():
            with self._spaced.doing():
                self._at_end = {
                    name: (one, _items(one)) for name, one in _lists_of(self._dataset).items() if type(one) is list
                }
                self._values_at_end = values_of(self._dataset)
                self._marks_at_end = _marks_of(self._dataset)

    def epoch_begins(self, known: Collection[str]) -> None:
        """The body of ``session.epochs`` begins. ``known``: names of what the script was told of already."""
        before, self._at_end = self._at_end, {}
        values, self._values_at_end = self._values_at_end, {}
        marks, self._marks_at_end = self._marks_at_end, {}
        self._looks = not self._training.on_restore and self._spaced.is_due()
        if before or values or self._looks:
            with self._spaced.doing():
                now, self._values = _lists_of(self._dataset), values_of(self._dataset)
                lists = ((name, items, now.get(name)) for name, (_, items) in before.items())
                changed = [name for name, items, one in lists if type(one) is list and _differs(items, one)]
                others = _marks_of(self._dataset) if marks else {}
                within = [name for name, mark in marks.items() if others.get(name, mark) != mark]
                found = [*changed, *_changed(values, self._values)]
                self._tell(found or within, known)
                self._at_beginning = {name: (one, _items(one)) for name, one in now.items()} if self._looks else {}

    def pass_begins(self, frames: Sequence[FrameType], head: int, known: Collection[str]) -> None:
        """The loop over the loader begins.

        Parameters
        ----------
        frames : the running functions, from the one with the session's loop over epochs on
        head : where that loop begins
        known : names of what the script was told of already
        """
        before, self._at_beginning = self._at_beginning, {}
        if self._looks and frames:
            with self._spaced.doing():
                now = _lists_of(self._dataset)
                self._tell(
                    [
                        *(
                            name
                            for name, (one, items) in before.items()
                            if one is now.get(name) and self._is_shuffled(name, one, items, frames)
                        ),
                        *self._labelled_in_some(before, now, frames, head),
                        *self._changed_again(frames, head),
                    ],
                    known,
                )

    def _is_shuffled(self, name: str, one: Any, items: Any, frames: Sequence[FrameType]) -> bool:
        """And not filled with another order of the same items."""
        if not _is_reordered(items, _items(one)):
            return False
        attribute = name.rpartition(".")[2].partition("[")[0]
        its = (code for code in attribute_code.methods(type(whole_of(self._dataset))) if code.co_name not in GIVE)
        codes = [*(frame.f_code for frame in frames), *its]
        return not any(refilled(code, attribute) for code in codes)

    def _labelled_in_some(
        self, before: Kept, now: dict[str, Any], frames: Sequence[FrameType], head: int
    ) -> Iterator[str]:
        """Lists with labels that another epoch's beginning has set, or made, and this one's not (``if epoch == 1``)."""
        changed = {
            name
            for name, (_, items) in before.items()
            if type(one := now.get(name)) is list and _is_labelled(items, one)
        }
        changed |= {name for name, one in now.items() if name not in before and type(one) is list}
        left = [name for name in before if name in self._labelled and name not in changed]
        self._labelled |= changed
        if left and called.changes_under_equality(frames, head, self._is_dataset):
            yield from left

    def _changed_again(self, frames: Sequence[FrameType], head: int) -> Iterator[str]:
        """Its values that two epochs' beginnings have changed from what they were (``data.scale *= 0.9``), and that
        none has made anew.
        """
        now = values_of(self._dataset)
        changed = {place: one.name for place, one in self._values.items() if now.get(place, one).mark != one.mark}
        if changed:
            parts = list(called.beginning(frames, head, to_inner_loop=False))
            found = {(id(owner), name) for part in parts for owner, name in part.changed_from_itself()}
            for owner, attribute in changed.keys() & found:
                anew = (id(one) for part in parts for one in part.made_anew(attribute))
                if owner not in anew:
                    if (owner, attribute) in self._changed:
                        yield changed[owner, attribute]
                    self._changed.add((owner, attribute))

    def _is_dataset(self, value: object) -> bool:
        """Whether it is the dataset, or a loader or a part of it (a ``Subset``)."""
        while isinstance(value, TrainingLoader | Subset):
            value = getattr(value, "dataset", None)
        return value is whole_of(self._dataset)

    def _tell(self, names: Sequence[str], known: Collection[str]) -> None:
        names = [name for name in dict.fromkeys(names) if name not in self._told and name not in known]
        self._told.update(names)
        if names:
            refusal.note(
                "the script changes what its dataset holds from what it was in the epoch before"
                f" ({', '.join(names[:_SHOWN])}{', ...' if len(names) > _SHOWN else ''}), and a node that joins, or a"
                " run that resumes, has it as it is before the loop, so that samples come twice and others never, or"
                " with other labels or values: at each epoch's beginning, make it from what it is before the loop and"
                " from the epoch's number (shuffle=True of session.loader orders samples anew in each epoch)"
            )


def _changed(before: dict[Place, Value], now: dict[Place, Value]) -> Iterator[str]:
    """The names of values that are others, and that reading samples (to evaluate) does not set."""
    for place, one in before.items():
        if place in now and now[place].mark != one.mark and place[1] not in {_MODE, *set_by_reading(one.kind)}:
            yield one.name


def _marks_of(dataset: object) -> dict[str, Any]:
    """By name what changes if something does that its sets, deques, lists of lists or of tensors and dicts of these
    hold; not of those that reading samples may change, nor of objects, generators and iterators in them.
    """
    whole = whole_of(dataset)
    kind: type = type(whole)
    found: dict[str, Any] = {}
    for name, one in inner(whole):
        if isinstance(one, _HOLD) and name not in changed_by_reading(kind):
            marks = marks_in("", one, set(), (), DEPTH)
            found |= {f"dataset.{name}{path}": mark for path, mark in marks if "." not in path and type(mark) in _MARKS}
    return found


def _lists_of(dataset: object) -> dict[str, Any]:
    """Each once."""
    names = {id(one): name for name, one in reversed([*_held(dataset)])}
    return {name: one for name, one in _held(dataset) if names[id(one)] == name}


def _held(dataset: object, name: str = "dataset", depth: int = _DEPTH) -> Iterator[tuple[str, Any]]:
    """Its lists and arrays, and those of the datasets in it."""
    if is_looked_at(dataset):
        yield name, dataset
    elif isinstance(dataset, Subset):
        yield from ((f"{name}.indices", one) for one in [dataset.indices] if is_looked_at(one))
        yield from _held(dataset.dataset, name, depth)
    elif depth:
        for key, one in held_by(dataset):
            if isinstance(one, Dataset) or is_looked_at(one):
                yield from _held(one, f"{name}[{key}]" if isinstance(key, int) else f"{name}.{key}", depth - 1)


def _items(value: Any) -> Any:
    """Of a list its items, of an array its rows as bytes."""
    if type(value) is list or (type(value) is np.ndarray and value.dtype.hasobject):
        return list(value)
    array = value.detach().contiguous().view(torch.uint8).numpy() if type(value) is torch.Tensor else value
    rows = np.ascontiguousarray(array).reshape(len(value), -1)
    return rows.view(np.dtype((np.void, rows.shape[1] * rows.itemsize))).ravel().copy()


def _is_reordered(before: Any, now: Any) -> bool:
    """The same items in another order."""
    if len(before) != len(now):
        return False
    if type(before) is list:
        differ = [(id(one), id(other)) for one, other in zip(before, now, strict=True) if one is not other]
        return bool(differ) and Counter(one for one, _ in differ) == Counter(other for _, other in differ)
    is_same = before.dtype == now.dtype and before.tobytes() == now.tobytes()
    return not is_same and sorted(map(bytes, before)) == sorted(map(bytes, now))


def _differs(before: Sequence[Any], now: Sequence[Any]) -> bool:
    return _is_reordered(before, now) or _is_labelled(before, now)


def _is_labelled(before: Sequence[Any], now: Sequence[Any]) -> bool:
    """An item has another number or text than before, or holds another one."""
    pairs = zip(before, now, strict=True) if len(before) == len(now) else ()
    return any(_has_other_label(one, other) for one, other in pairs if one is not other)


def _has_other_label(before: Any, now: Any) -> bool:
    if type(before) in (tuple, list) and type(now) is type(before) and len(before) == len(now):
        return any(_has_other_label(*pair) for pair in zip(before, now, strict=True) if pair[0] is not pair[1])
    are_numbers = isinstance(before, NUMBERS) and isinstance(now, NUMBERS)
    return bool((are_numbers or (isinstance(before, str) and isinstance(now, str))) and before != now)
