"""The numbers that a script's ``enumerate(loader)`` gives to batches.

They are those of an undisturbed epoch. On a node that joins, and in a run that resumes, in the middle of an epoch, an
``enumerate`` would begin at 0, and after a void step it would count the repeated batch twice, so that a learning rate
computed from it would differ between ranks. Python cannot set its number, so we find the object and change it.
"""

from __future__ import annotations

import ctypes
import gc
import itertools
import weakref
from collections.abc import Callable, Iterator, Sequence
from types import GeneratorType
from typing import Any

from pilot.train.script.iterators import place_of
from pilot.train.script.loop_code import yields_each_turn
from pilot.train.script.refusal import is_of_a_library

_PASS_ON = (tuple, zip, map, filter, itertools.islice, itertools.chain)
"""What may stand between it and the loader (``enumerate(zip(loader, others))``), apart from generators."""
_PAIR = (zip, map)
_DEPTH = 4
Place = tuple[int, int, bool]


class BatchNumbers:
    """Of the batches of one pass over the loader at a time. ``zipped``: called if the first of them has its batches
    paired with the items of a list or the like, which cannot go on where the loader does.
    """

    def __init__(self, zipped: Callable[[], None]) -> None:
        self._zipped = zipped
        self._looked = False
        self._given = 0
        self._place: Place | None = None
        self._batches: weakref.ref[Any] | None = None

    def begin(self, batches: Iterator[Any]) -> Iterator[Any]:
        """A pass begins, in which the script gets ``batches``, a generator."""
        self._given, self._place, self._batches = 0, None, weakref.ref(batches)
        return batches

    def give(self, place: Place, number: Callable[[], int]) -> None:
        """The script gets the next batch, whose ``number`` in the epoch is not one more only in another ``place``: the
        epoch, the group's revision, which changes with each void step, and whether somebody rehearses.
        """
        if not self._looked:
            self._looked = True
            self._look()
        if place != self._place:
            self._place = place
            self._go_on_at(number())
        self._given += 1

    def _look(self) -> None:
        batches = self._batches() if self._batches is not None else None
        around = () if batches is None else _around(batches)
        if any(_is_paired(one, asking) for asking, holders in around for one in holders if type(one) in _PAIR):
            self._zipped()

    def _go_on_at(self, number: int) -> None:
        batches = self._batches() if self._batches is not None else None
        if number != self._given and batches is not None:
            for counter in _counters(batches):
                _add(counter, number - self._given)
            self._given = number


def _counters(batches: GeneratorType[Any, Any, Any]) -> Iterator[enumerate[Any]]:
    """Those that are asking for a batch now."""
    for around, holders in _around(batches):
        for one in holders:
            if type(one) is enumerate and any(_state(one)[0] is passing for passing in around):
                yield one


def _around(batches: GeneratorType[Any, Any, Any]) -> Iterator[tuple[Sequence[Any], Sequence[Any]]]:
    """What is asking for a batch now, and what holds that: directly, and then through what passes one on for each that
    it gets.
    """
    around: Sequence[Any] = [batches, *_generators_around(batches)]
    for _ in range(_DEPTH):
        holders = gc.get_referrers(*around)
        yield around, holders
        around = [one for one in holders if type(one) in _PASS_ON]
        if not around:
            return


def _is_paired(one: Any, around: Sequence[Any]) -> bool:
    """Whether a ``zip`` or ``map`` also goes through what begins anew: a list, a range, a tensor, a count, a generator
    of the script's.
    """
    parts = (other for other in one.__reduce__()[1] if isinstance(other, Iterator))
    return any(_begins_anew(other) for other in parts if not any(other is each for each in around))


def _begins_anew(other: Iterator[Any]) -> bool:
    if isinstance(other, GeneratorType):
        return not is_of_a_library(other.gi_code.co_filename)
    is_countable = type(other).__module__ == "builtins" and place_of(other) is not None
    return is_countable or isinstance(other, itertools.cycle | itertools.count)


def _generators_around(batches: GeneratorType[Any, Any, Any]) -> list[GeneratorType[Any, Any, Any]]:
    """As of a progress bar. (A generator that runs does not tell the garbage collector what it iterates over.)"""
    frames, frame = [], batches.gi_frame and batches.gi_frame.f_back
    while frame is not None and yields_each_turn(frame):
        frames.append(frame)
        frame = frame.f_back
    if not frames:
        return []
    running = [one for one in gc.get_objects() if type(one) is GeneratorType and one.gi_running]
    return [one for one in running if one.gi_frame in frames]


def _state(counter: enumerate[Any]) -> tuple[object, int]:
    """What it goes through, and the number that it gives next."""
    state: Any = counter.__reduce__()[1]
    return state[0], state[1]


def _add(counter: enumerate[Any], more: int) -> None:
    """Change its number, the first word after the object's head."""
    word = ctypes.c_ssize_t.from_address(id(counter) + object.__basicsize__)
    if word.value == _state(counter)[1]:  # not so in a Python that keeps it elsewhere
        word.value += more
