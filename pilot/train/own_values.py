"""Tells of what a script keeps in variables and objects of its own and changes in its loop: a counter of steps that a
schedule uses, the best measure so far, a pool of images, a random generator. A process that joins has them as they are
before the loop.

Whether training depends on them cannot be seen, so nothing is refused.
"""

from __future__ import annotations

import argparse
import dis
import enum
import itertools
import random
import re
import sys
import weakref
import zlib
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from itertools import chain
from types import CodeType, FrameType, FunctionType, GeneratorType, SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import Dataset, Subset

from pilot.train import refusal
from pilot.train.training import Training
from pilot.train.untracked import inner, is_of_the_script

_DEPTH = 3
_SHOWN = 5
_LARGE_BYTES = 1 << 20
_PLAIN = (bool, int, float, str, np.number, np.bool_)
_ARRAYS = (torch.Tensor, np.ndarray)
_MANY = (list, dict, set, deque)
_WITH_ITEMS = (list, tuple, dict, deque)
_HOLDERS = (argparse.Namespace, SimpleNamespace)
"""Objects in which scripts keep values, without a class of their own."""

_OF_VARIABLES = re.compile(r"(LOAD|STORE)_(FAST(?!_AND_CLEAR)|NAME|GLOBAL|DEREF)")
_USE = re.compile("LOAD|STORE")

_Place = tuple[int, str]
"""A frame or a module's variables (which one), and a name in it; or a tensor or array in a variable, and its name."""


class OwnValues:
    """Looks for one session. ``training``: what it knows."""

    def __init__(self, training: Training) -> None:
        self._training = training
        self._before: dict[_Place, Any] = {}
        self._arrays: dict[_Place, weakref.ref[Any] | None] = {}
        self._told: set[_Place] = set()
        self._dataset: object = None
        self._epoch: int | None = None

    def begin(self, dataset: object) -> None:
        """The loop over ``dataset`` begins: a process that joins will have these values."""
        while isinstance(dataset, Subset):
            dataset = dataset.dataset
        self._dataset = dataset
        self._before = dict(self._seen())
        self._arrays = {
            (which, name): weakref.ref(value) if isinstance(value, _ARRAYS) else None
            for which, values in _spaces()
            for name, value in values.items()
        }

    def step(self) -> None:
        """The script steps. What a dataset has at an epoch's first step counts as set at the epoch's beginning, as on a
        process that joins.
        """
        if self._epoch != self._training.position.epoch:
            self._epoch = self._training.position.epoch
            self._before |= self._of_dataset()

    def look(self) -> None:
        """Tell, once, of each that has changed, unless the script says that it restores its values itself."""
        if self._training.on_restore:
            return
        before, kept = self._before, [value for value in self._training.user.values() if isinstance(value, _PLAIN)]
        changed = [
            place
            for place, value in chain(self._seen(), self._of_dataset().items())
            if place in before and before[place] != value and place not in self._told and value not in kept
        ]
        changed += [place for place in self._replaced() if place not in self._told]
        if changed:
            self._told.update(changed)
            names = list(dict.fromkeys(name for _, name in changed))
            refusal.note(
                f"the script keeps values of its own that change in its loop ({', '.join(names[:_SHOWN])}"
                f"{', ...' if len(names) > _SHOWN else ''}), and a node that joins, or a run that resumes, has them as"
                " they are before the loop: what training depends on belongs in session.state or session.track"
            )

    def _seen(self) -> Iterator[tuple[_Place, Any]]:
        known = self._known()
        for which, values in _spaces():
            for name, value in list(values.items()):
                place = id(value) if isinstance(value, _ARRAYS) else which
                for path, mark in _marks(name, value, known, _DEPTH):
                    yield (place, path), mark
        for name, value in self._training.numbers.others():
            place = id(value) if isinstance(value, _ARRAYS) else 0
            for path, mark in _marks(name, value, known, _DEPTH):
                yield (place, path), mark

    def _of_dataset(self) -> dict[_Place, Any]:
        """Not what it keeps in lists and dicts: samples that it has read."""
        found = {
            f"dataset.{name}": value if isinstance(value, _PLAIN) else _random_state(value)
            for name, value in inner(self._dataset)
        }
        return {(id(self._dataset), name): mark for name, mark in found.items() if mark is not None}

    def _replaced(self) -> Iterator[_Place]:
        """Tensors and arrays that each turn of the loop leaves to the next one in a variable from before the loop."""
        known = self._known() | set(map(id, self._training.user.values()))
        for frame in _frames():
            for name in _read_first(frame.f_code, frame.f_lasti):
                for which, values in ((id(frame), frame.f_locals), (id(frame.f_globals), frame.f_globals)):
                    place, value = (which, name), values.get(name)
                    if place in self._arrays and isinstance(value, _ARRAYS) and id(value) not in known:
                        was = self._arrays[place]
                        if was is None or was() is not value:
                            yield place

    def _known(self) -> set[int]:
        """What the session has, and what its optimizers change."""
        training = self._training
        steppers, tracked = training.steppers, training.tracked.values()
        ours: list[Any] = [training.user, *tracked, *training.trained.named.values()]
        for module in (training.model, *(one for one in tracked if isinstance(one, nn.Module))):
            ours += [*module.modules(), *module.parameters(), *module.buffers()]
        ours += [*steppers.schedulers.values(), *steppers.scalers.values()]
        for one in steppers.optimizers.values():
            ours += [one, one.state, one.param_groups, *one.param_groups]
        return set(map(id, ours))


def _spaces() -> Iterator[tuple[int, dict[str, Any]]]:
    """The variables of the script's running functions, and of their modules."""
    seen = set()
    for frame in _frames():
        if frame.f_locals is not frame.f_globals:
            yield id(frame), frame.f_locals
        if id(frame.f_globals) not in seen:
            seen.add(id(frame.f_globals))
            yield id(frame.f_globals), frame.f_globals


def _frames() -> Iterator[FrameType]:
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if not refusal.is_of_a_library(frame.f_code.co_filename):
            yield frame
        frame = frame.f_back


@cache
def _read_first(code: CodeType, at: int) -> tuple[str, ...]:
    """The variables that the outermost loop around the instruction ``at`` reads before it sets them."""
    instructions = list(dis.get_instructions(code))
    ends = [one for one in instructions if "JUMP_BACKWARD" in one.opname and one.argval <= at <= one.offset]
    if not ends:
        return ()
    first, last = min(one.argval for one in ends), max(one.offset for one in ends)
    uses: dict[str, str] = {}
    for one in instructions:
        if first <= one.offset <= last and _OF_VARIABLES.match(one.opname):
            names = one.argval if isinstance(one.argval, tuple) else (one.argval,)
            for use, name in zip(_USE.findall(one.opname), names, strict=False):
                uses.setdefault(name, use)
    return tuple(name for name, use in uses.items() if use == "LOAD")


def _marks(name: str, value: Any, known: set[int], depth: int) -> Iterator[tuple[str, Any]]:
    """What changes if ``value``, or something in it, does."""
    if name.startswith("__") or name == "_" or id(value) in known or isinstance(value, Dataset):
        return
    if value is None or isinstance(value, (*_PLAIN, enum.Enum)):
        yield name, value
    else:
        if (mark := _mark(value, is_variable=depth == _DEPTH)) is not None:
            yield name, mark
        if depth > 1:
            for path, one in _held(value):
                yield from _marks(name + path, one, known, depth - 1)


def _mark(value: Any, *, is_variable: bool) -> Any:
    """Variables hold batches, too: of a tensor there only a change in place counts."""
    if isinstance(value, _MANY):
        return len(value)
    if type(value) is torch.Tensor and value.layout is torch.strided and not value.is_inference():
        return value._version if is_variable else (value.data_ptr(), value._version)
    if type(value) is np.ndarray and value.nbytes <= _LARGE_BYTES and not value.dtype.hasobject:
        return zlib.crc32(value.tobytes())
    if isinstance(value, GeneratorType) and not refusal.is_of_a_library(value.gi_code.co_filename):
        return value.gi_frame and value.gi_frame.f_lasti
    return repr(value) if isinstance(value, itertools.count) else _random_state(value)


def _random_state(value: Any) -> Any:
    if isinstance(value, torch.Generator):
        return value.get_state().numpy().tobytes()
    if isinstance(value, np.random.Generator):
        return str(value.bit_generator.state)
    if isinstance(value, np.random.RandomState):
        return str(value.get_state())
    return value.getstate() if type(value) is random.Random else None


def _held(value: Any) -> Iterator[tuple[str, Any]]:
    """What ``value`` holds, with its place there: also the variables of a function's closure and of a generator, and
    what an object has from its class until it is first changed.
    """
    if isinstance(value, _WITH_ITEMS):
        yield from ((f"[{key!r}]", one) for key, one in inner(value))
    elif isinstance(value, FunctionType) and not refusal.is_of_a_library(value.__code__.co_filename):
        for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
            with suppress(ValueError):  # it has no value yet
                yield f".{name}", cell.cell_contents
        yield from ((f".{name}", one) for name, one in inner(value))
    elif isinstance(value, GeneratorType) and not refusal.is_of_a_library(value.gi_code.co_filename):
        yield from ((f".{name}", one) for name, one in list(value.gi_frame.f_locals.items() if value.gi_frame else ()))
    elif isinstance(value, type) and is_of_the_script(value):
        yield from ((f".{name}", one) for name, one in list(vars(value).items()))
    elif is_of_the_script(type(value)) or isinstance(value, _HOLDERS):
        held = {name: one for name, one in vars(type(value)).items() if isinstance(one, _PLAIN)} | dict(inner(value))
        yield from ((f".{name}", one) for name, one in held.items())
