"""What a script changes in ``session.state`` at the beginning of a turn of its loop, such as a temperature.

A process that takes part from the middle of an epoch on, and one whose iteration is repeated, does the beginning again,
and may compute with what it gets there (``t = session.state["t"] = session.state["t"] * 0.9``). So it does that with
the values from before, and the later ones follow when it has caught up. Not with those that batches have changed since:
it may go on from them (``n = session.state["n"]``, and in each batch ``n += 1; session.state["n"] = n``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import NoneType
from typing import Any

import numpy as np
import torch

from pilot.checkpoint.tree import copied
from pilot.train.state.loading import filled
from pilot.train.state.module_numbers import same

_PLAIN = (bool, int, float, str, bytes, NoneType, np.generic)
_MOST = 100
"""How many numbers a value may have in all: copying and comparing so many costs nothing."""
Values = dict[str, Any]


@dataclass(slots=True)
class AtBeginning:
    """Small values that the beginning of turn ``number`` has changed: as they were ``before``, and ``after`` it.
    ``large``: the others that were there before.
    """

    number: int = -1
    before: Values = field(default_factory=dict)
    after: Values = field(default_factory=dict)
    is_over: bool = True
    large: frozenset[str] = frozenset()

    @classmethod
    def of(cls, number: int, state: Mapping[str, Any]) -> AtBeginning:
        """Turn ``number`` begins, with this ``session.state``."""
        before = _small(state)
        return cls(number, before, {}, is_over=False, large=frozenset(state.keys() - before.keys()))

    def ends(self, state: Mapping[str, Any]) -> None:
        """The script has reached the turn's first batch (or a later one)."""
        if not self.is_over:
            self.is_over = True
            self.after = self._changed(state)
            self.before = {name: value for name, value in self.before.items() if name in self.after}

    def undo(self, state: Values) -> None:
        """The turn begins again."""
        for name in self.after:
            now = state.pop(name, None)
            if name in self.before:
                state[name] = filled(now, copied(self.before[name]))

    def captured(self, state: Mapping[str, Any]) -> Values:
        """For the state that is sent and saved. If the beginning is not over, what it has changed so far counts."""
        after = self.after if self.is_over else self._changed(state)
        return {"number": self.number, "before": dict(self.before), "after": dict(after)}

    @classmethod
    def restored(cls, captured: Mapping[str, Any] | None, state: Mapping[str, Any]) -> AtBeginning:
        """From :meth:`captured`, without what has changed in ``state`` since."""
        if captured is None:
            return cls()
        now = _small(state)
        after = {name: value for name, value in captured["after"].items() if name in now and same(now[name], value)}
        before = {name: value for name, value in captured["before"].items() if name in after}
        return cls(captured["number"], before, after)

    def _changed(self, state: Mapping[str, Any]) -> Values:
        known = self.before
        return {
            name: one
            for name, one in _small(state).items()
            if name not in self.large and not (name in known and same(known[name], one))
        }


def _small(state: Mapping[str, Any]) -> Values:
    """Copies of those that are."""
    small = {name: value for name, value in state.items() if _numbers_in(value, _MOST) <= _MOST}
    values: Values = copied(small)
    return values


def _numbers_in(value: Any, most: int) -> int:
    """How many; more than ``most`` if it is of another kind, or on a GPU, for which everybody would wait."""
    if isinstance(value, _PLAIN):
        return 1
    if isinstance(value, torch.Tensor):
        return value.numel() if value.device.type == "cpu" and value.layout is torch.strided else most + 1
    if isinstance(value, np.ndarray):
        return int(value.size)
    if not isinstance(value, list | tuple | set | frozenset | dict):
        return most + 1
    count = len(value)
    for one in value.values() if isinstance(value, dict) else value:
        if count > most:
            break
        count += _numbers_in(one, most - count)
    return count
