"""Tells of what a script keeps in variables and objects of its own and changes in its loop: a counter of steps that a
schedule uses, the best measure so far, a pool of images. A process that joins has them as they are before the loop.

Whether training depends on them cannot be seen, so nothing is refused.
"""

from __future__ import annotations

import sys
import zlib
from collections import deque
from collections.abc import Iterator
from types import FrameType
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

from pilot.train import refusal
from pilot.train.training import Training
from pilot.train.untracked import inner, is_of_the_script

_DEPTH = 3
_SHOWN = 5
_LARGE_BYTES = 1 << 20
_PLAIN = (bool, int, float, str, np.number, np.bool_)
_MANY = (list, dict, set, deque)

_Place = tuple[int, str]
"""A frame or a module's variables (which one), and a name in it."""


class OwnValues:
    """Looks for one session. ``training``: what it knows."""

    def __init__(self, training: Training) -> None:
        self._training = training
        self._before: dict[_Place, Any] = {}
        self._told: set[_Place] = set()

    def begin(self) -> None:
        """The loop begins: a process that joins will have these values."""
        self._before = dict(self._seen())

    def look(self) -> None:
        """Tell, once, of each that has changed, unless the script says that it restores its values itself."""
        if self._training.on_restore:
            return
        before, kept = self._before, [value for value in self._training.user.values() if isinstance(value, _PLAIN)]
        changed = [
            place
            for place, value in self._seen()
            if place in before and before[place] != value and place not in self._told and value not in kept
        ]
        if changed:
            self._told.update(changed)
            names = list(dict.fromkeys(name for _, name in changed))
            refusal.note(
                f"the script keeps values of its own that change in its loop ({', '.join(names[:_SHOWN])}"
                f"{', ...' if len(names) > _SHOWN else ''}), and a node that joins, or a run that resumes, has them as"
                " they are before the loop: what training depends on belongs in session.state or session.track"
            )

    def _seen(self) -> Iterator[tuple[_Place, Any]]:
        training = self._training
        known = {id(training.user), *map(id, training.tracked.values()), *map(id, training.model.modules())}
        for which, values in _spaces():
            for name, value in list(values.items()):
                for path, mark in _marks(name, value, known, _DEPTH):
                    yield (which, path), mark


def _spaces() -> Iterator[tuple[int, dict[str, Any]]]:
    """The variables of the script's running functions, and of their modules."""
    seen = set()
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if not refusal.is_of_a_library(frame.f_code.co_filename):
            if frame.f_locals is not frame.f_globals:
                yield id(frame), frame.f_locals
            if id(frame.f_globals) not in seen:
                seen.add(id(frame.f_globals))
                yield id(frame.f_globals), frame.f_globals
        frame = frame.f_back


def _marks(name: str, value: Any, known: set[int], depth: int) -> Iterator[tuple[str, Any]]:
    """What changes if ``value``, or something in it, does. Tensors count in objects only: variables hold batches."""
    if name.startswith("__") or id(value) in known or isinstance(value, Dataset):
        return
    if value is None or isinstance(value, _PLAIN):
        yield name, value
        return
    if isinstance(value, _MANY):
        yield name, len(value)
    elif depth < _DEPTH and (mark := _of_numbers(value)) is not None:
        yield name, mark
    if depth > 1 and (isinstance(value, list | dict) or is_of_the_script(type(value))):
        for key, one in inner(value):
            path = f"{name}[{key!r}]" if isinstance(value, list | dict) else f"{name}.{key}"
            yield from _marks(path, one, known, depth - 1)


def _of_numbers(value: Any) -> Any:
    if type(value) is torch.Tensor:
        return value.data_ptr(), value._version
    if type(value) is np.ndarray and value.nbytes <= _LARGE_BYTES and not value.dtype.hasobject:
        return zlib.crc32(value.tobytes())
    return None
