"""Tells of a stream's source whose readings begin otherwise each time: with a random generator, or a position, that the
reading before has moved. A node that joins reads it from the beginning, and would read other samples than the others.
"""

from __future__ import annotations

from types import FunctionType
from typing import Any

from torch.utils.data import DataLoader

from pilot.train.script import refusal
from pilot.train.script.loop_code import set_by
from pilot.train.script.plain_marks import numbers_and_generators


class StreamSource:
    """What ``source`` keeps from one reading to the next: numbers and generators that its own methods do not set at
    the beginning of each. (In a loader's processes it is a copy, which each reading makes anew.)
    """

    def __init__(self, source: object) -> None:
        self._source = source.dataset if isinstance(source, DataLoader) else source
        methods = ("set_epoch", "from_cursor" if hasattr(self._source, "from_cursor") else "__iter__")
        functions = [getattr(type(self._source), name, None) for name in methods]
        self._set = set().union(*(set_by(one.__code__) for one in functions if isinstance(one, FunctionType)))
        self._before: dict[str, Any] = {}
        self._told = False

    def opened(self) -> None:
        """A reading begins."""
        self._before = numbers_and_generators(self._source)

    def has_read(self) -> None:
        """Tell, once, what reading has changed."""
        if self._told:
            return
        now = numbers_and_generators(self._source)
        changed = [name for name, mark in now.items() if name not in self._set and self._before.get(name, mark) != mark]
        if changed:
            self._told = True
            refusal.note(
                f"reading the source of session.stream changes what it keeps ({', '.join(changed)}), so that a node"
                " which joins, and reads it from the beginning, may find other samples than the nodes that are there:"
                " if its samples or their order depend on that, set it where __iter__ begins, or in set_epoch(n)"
            )
