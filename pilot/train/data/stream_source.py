"""Tells of a stream's source whose readings begin otherwise each time: with a random generator, an iterator, or a
position, that the reading before has moved. A node that joins reads it from the beginning, and would read other samples
than the others.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from contextlib import suppress
from types import FunctionType, GeneratorType
from typing import Any

from torch.utils.data import DataLoader

from pilot.train.script import refusal
from pilot.train.script.attribute_code import set_by
from pilot.train.script.iterators import place_of
from pilot.train.script.objects import inner
from pilot.train.script.plain_marks import PLAIN, numbers_and_generators


class StreamSource:
    """What ``source`` keeps from one reading to the next: numbers, random generators, iterators and open files that its
    own methods do not set at the beginning of each. (In a loader's processes it is a copy, which each reading makes
    anew.)
    """

    def __init__(self, source: object) -> None:
        self._source = source.dataset if isinstance(source, DataLoader) else source
        methods = ("set_epoch", "from_cursor" if hasattr(self._source, "from_cursor") else "__iter__")
        functions = [getattr(type(self._source), name, None) for name in methods]
        codes = [one.__code__ for one in functions if isinstance(one, FunctionType)]
        self._set = set().union(*map(set_by, codes))
        self._rewinds = any("seek" in code.co_names for code in codes)
        self._before: dict[str, Any] = {}
        self._told = False

    def opened(self) -> None:
        """A reading begins."""
        self._before = self._kept()

    def has_read(self) -> None:
        """Tell, once, what reading has changed."""
        if self._told:
            return
        now = self._kept()
        changed = [name for name, mark in now.items() if name not in self._set and self._before.get(name, mark) != mark]
        if changed:
            self._told = True
            refusal.note(
                f"reading the source of session.stream changes what it keeps ({', '.join(changed)}), so that a node"
                " which joins, and reads it from the beginning, may find other samples than the nodes that are there:"
                " if its samples or their order depend on that, set it where __iter__ begins, or in set_epoch(n)"
            )

    def _kept(self) -> dict[str, Any]:
        places = ((name, _place_in(value)) for name, value in inner(self._source) if not self._is_rewound(value))
        return numbers_and_generators(self._source) | {name: place for name, place in places if place is not None}

    def _is_rewound(self, value: object) -> bool:
        return self._rewinds and isinstance(value, io.IOBase)


def _place_in(value: object) -> Any:
    """How far what is read on has been read: an iterator, a generator (its variables), a file; None: nobody knows."""
    if isinstance(value, GeneratorType):
        frame = value.gi_frame
        return (frame.f_lasti, [one for one in frame.f_locals.values() if isinstance(one, PLAIN)]) if frame else ()
    if isinstance(value, io.IOBase):  # which does not tell while it is iterated over; what it has read, it has in parts
        with suppress(OSError, ValueError):
            return os.lseek(value.fileno(), 0, os.SEEK_CUR)
        return None
    return place_of(value) if isinstance(value, Iterator) else None
