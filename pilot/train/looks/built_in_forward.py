"""Tells of what a model makes in its first batches, and notes in a plain attribute that it has (``if not self.built:
self.table = Table(); self.built = True``). A process that joins takes over the attribute, and so never makes the rest:
an object, a large tensor, a layer in place of another one.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from torch import nn

from pilot.train.script import refusal
from pilot.train.state.module_numbers import Numbers, same, shown
from pilot.train.state.training import Training

_SHOWN = 5

Place = tuple[str, str]
"""A module's path, and the name of an attribute or of a part."""


@dataclass(frozen=True)
class _Made:
    """What is other than before the loop, and the plain attributes that are, by the module's path."""

    values: dict[Place, Any]
    flags: Numbers


class BuiltInForward:
    """Looks for one session. ``training``: what it knows."""

    def __init__(self, training: Training) -> None:
        self._training = training
        self._first: dict[Place, Callable[[], Any]] = {}
        self._made: _Made | None = None
        self._told = False

    def begin(self) -> None:
        """The loop begins."""
        self._first = {
            (path, name): _reference(value)
            for path, module in self._training.numbers.modules()
            for name, value in (*vars(module).items(), *module._modules.items())
        }

    def look(self, *, is_due: bool) -> None:
        """Call it in each step, after the forward pass. What is made once is the same in the next step.

        Parameters
        ----------
        is_due : whether it is time to look
        """
        before, self._made = self._made, None
        if self._told or self._training.on_restore or not (before or is_due):
            return
        now = _Made(dict(self._others()), self._training.numbers.capture())
        self._made = now if is_due else None
        if before is not None:
            self._tell(*_kept(before, now))

    def _others(self) -> Iterator[tuple[Place, Any]]:
        """What no state has, and the parts."""
        for path, name, value in self._training.numbers.values_of_others():
            if not self._is_first(path, name, value):
                yield (path, name), value
        for path, module in self._training.numbers.modules():
            for name, part in module._modules.items():
                if isinstance(part, nn.Module) and not self._is_first(path, name, part):
                    yield (path, name), part

    def _is_first(self, path: str, name: str, value: object) -> bool:
        """Whether it is what was there before the loop."""
        first = self._first.get((path, name))
        return first is not None and first() is value

    def _tell(self, made: list[Place], flags: list[Place]) -> None:
        if made:
            self._told = True
            names, its = ([shown(*one) for one in places] for places in (made, flags))
            refusal.note(
                f"{', '.join(names[:_SHOWN])}{', ...' if len(names) > _SHOWN else ''} is made in a batch, which"
                f" {', '.join(its[:_SHOWN])} seems to say from then on; a node that joins, or a run that resumes, takes"
                " over the second and would lack the first: make it in __init__, or run the model on a batch before"
                " pilot.train.session"
            )


def _reference(value: Any) -> Callable[[], Any]:
    """It keeps nothing that may be large."""
    try:
        return weakref.ref(value)
    except TypeError:
        return lambda: value


def _kept(before: _Made, now: _Made) -> tuple[list[Place], list[Place]]:
    """What both have, of modules with plain attributes that both have."""
    made = [place for place, value in before.values.items() if now.values.get(place) is value]
    flags = {
        path: [(path, name) for name, value in its.items() if _is_flag(name, value, now.flags.get(path, {}))]
        for path, its in before.flags.items()
    }
    made = [place for place in made if flags.get(place[0])]
    return made, [flag for path in dict.fromkeys(path for path, _ in made) for flag in flags[path]]


def _is_flag(name: str, value: Any, now: dict[str, Any]) -> bool:
    return name in now and same(value, now[name])
