"""The numbers that a script's ``enumerate(loader)`` gives to batches.

They are those of an undisturbed epoch. On a node that joins, and in a run that resumes, in the middle of an epoch, an
``enumerate`` would begin at 0, and after a void step it would count the repeated batch twice, so that a learning rate
computed from it would differ between ranks. Python cannot set its number, so we find the object and change it.
"""

from __future__ import annotations

import ctypes
import gc
import inspect
import itertools
import weakref
from collections.abc import Callable, Iterator, Sequence
from types import GeneratorType
from typing import Any

_PASS_ON = (tuple, zip, map, filter, itertools.islice, itertools.chain)
"""What may stand between it and the loader (``enumerate(zip(loader, others))``), apart from generators."""
_DEPTH = 4
Place = tuple[int, int, bool]


class BatchNumbers:
    """Of the batches of one pass over the loader at a time."""

    def __init__(self) -> None:
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
        if place != self._place:
            self._place = place
            self._go_on_at(number())
        self._given += 1

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


def _generators_around(batches: GeneratorType[Any, Any, Any]) -> list[GeneratorType[Any, Any, Any]]:
    """As of a progress bar. (A generator that runs does not tell the garbage collector what it iterates over.)"""
    frames, frame = [], batches.gi_frame and batches.gi_frame.f_back
    while frame is not None and frame.f_code.co_flags & inspect.CO_GENERATOR:
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
