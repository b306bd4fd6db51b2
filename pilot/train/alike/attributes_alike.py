"""Compares the plain attributes of models between the ranks, by name: those that are part of the state (see
:mod:`pilot.train.state.module_numbers`), because training changes them. They may differ, but then the script is told.

What a script sets before its first step, and each node perhaps differently, is not compared; nor what ``forward``
leaves there anew in each batch.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from types import FunctionType
from typing import Any

from torch import nn

from pilot.checkpoint import checksums
from pilot.train.script import attribute_code
from pilot.train.state.module_numbers import Numbers, shown
from pilot.train.state.training import Training


class AttributesAlike:
    """One rank's. ``training``: has the models."""

    def __init__(self, training: Training) -> None:
        self._numbers = training.numbers
        self._changed: set[str] = set()

    def number(self, told: Collection[str]) -> int:
        """A checksum of all that have changed, but for those of which the script was ``told`` already."""
        changed = dict(self._named(self._numbers.capture()))
        self._changed = {*changed}
        return 1 + checksums.of_value({name: value for name, value in changed.items() if name not in told})

    def numbers(self) -> dict[str, int]:
        """Checksums by name: 1 to 65521 if it had changed at the last :meth:`number`, else the same below 0. (On
        another rank it may have.)
        """
        every = {name: 1 + checksums.of_value(value) for name, value in self._named(self._numbers.now())}
        return {name: number if name in self._changed else -number for name, number in every.items()}

    def _named(self, numbers: Numbers) -> Iterator[tuple[str, Any]]:
        for path, module in self._numbers.modules() if numbers else ():
            if its := numbers.get(path):
                anew = _set_anew(module)
                yield from ((shown(path, name), value) for name, value in its.items() if name not in anew)


def _set_anew(module: nn.Module) -> Collection[str]:
    """Attributes that its forward pass sets before it reads them: nothing depends on what they were."""
    forward = getattr(type(module), "forward", None)
    return attribute_code.set_by(forward.__code__) if isinstance(forward, FunctionType) else ()
