"""Tells of what a script computes with the model at an epoch's beginning, for all of its steps: prototypes, labels, or
rollouts. A process that joins in the middle of the epoch runs its beginning, too, with the model of then.

What depends on the epoch alone, or is drawn there, is the same for it. So it is noted where in the script a layer that
is trained, or of an average that is tracked, has run, and where a parameter is read; of what was computed there, that
counts which a step's loss is computed from, or that the dataset holds.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import chain
from types import CodeType, FrameType
from typing import Any

import numpy as np
import torch
from torch import nn

from pilot.train.looks.holders import held_by
from pilot.train.looks.moving import Moving
from pilot.train.looks.spaced import Spaced
from pilot.train.script import attribute_code, loop_code, parameter_reads, refusal
from pilot.train.script.bytecode import running_at
from pilot.train.script.objects import WITH_ITEMS, is_of_the_script
from pilot.train.script.parameter_reads import ParameterReads
from pilot.train.script.tensor_parts import has_shape
from pilot.train.state.training import Training

_SHOWN = 5
_PARTS = 1000
_FIRST_LOOKS = 4
"""Looks take one of so many parts of the time, but for the first ones."""
_ARRAYS = (torch.Tensor, np.ndarray)
_NUMBERS = (*_ARRAYS, float, np.floating)

Marks = dict[str, Any]
"""Of a dataset's arrays and lists, by name."""


class EpochOutputs:
    """Looks for one session. ``training``: what it knows; ``marks``: those of its dataset; ``is_dataset``: whether
    something is that. ``told``: what of.
    """

    def __init__(self, training: Training, marks: Callable[[], Marks], is_dataset: Callable[[object], bool]) -> None:
        self._training = training
        self._marks = marks
        self._is_dataset = is_dataset
        self._moving = Moving(training)
        self._spaced = Spaced(_PARTS, _FIRST_LOOKS)
        self._hooks: list[Any] = []
        self._ran = _Ran()
        self._before: Marks = {}
        self._looks = self._has_run = False
        self.told: list[str] = []

    def epoch_begins(self) -> None:
        """The body of ``session.epochs`` begins."""
        self._remove_hooks()
        self._ran = _Ran()
        training = self._training
        may = not (self.told or training.on_restore or training.sharding is not None)
        self._looks = may and self._spaced.is_due()
        if not self._looks:
            return
        with self._spaced.doing():
            self._before = self._marks()
            trained = {id(parameter) for parameter in training.trained.trained().values()}
            moving = self._moving.modules()
            trained.update(id(parameter) for one in moving for parameter in one.parameters())
            for module in chain.from_iterable(one.modules() for one in (training.model, *moving)):
                its = module._parameters.values()
                if not isinstance(module, torch.jit.ScriptModule) and any(id(one) in trained for one in its):
                    self._hooks.append(module.register_forward_pre_hook(self._ran))

    def pass_begins(self) -> None:
        """The loop over the loader begins."""
        self._remove_hooks()
        if self._ran.places:
            now = self._marks()
            self._tell([name for name, mark in now.items() if name in self._before and self._before[name] != mark])

    def step(self, frames: Sequence[FrameType], head: int) -> None:
        """The epoch's first step.

        Parameters
        ----------
        frames : the running functions, from the one with the session's loop over epochs on
        head : where that loop begins
        """
        loop = loop_code.inner_loop(frames, head) if self._looks and not self.told else None
        if loop is not None:
            reads = ParameterReads([self._training.model, *self._moving.modules()], self._training.trained.trained())
            used = [*_used(frames, head, *loop, self._ran.places, self._is_for_steps)]
            its = {(f.f_code, place) for f, *where in _before(frames, head, *loop) for place in reads.places(f, *where)}
            used += [
                (name, value)
                for name, value in _used(frames, head, *loop, its, self._is_for_steps)
                if reads.has_own(value)
            ]
            names = [name for name, value in used if not self._is_of_state(value)]
            self._tell(list(dict.fromkeys(names)))
        self._has_run = bool(self._ran.places)
        self._ran = _Ran()

    def look_at_whole(self, whole: FrameType, head: int) -> None:
        """The same, of the loop with all that it calls (:mod:`pilot.train.script.inlined`), where attributes of objects
        are variables; ``head``: where it begins.
        """
        loop = loop_code.inner_loop([whole], head) if self._looks and self._has_run and not self.told else None
        if loop is not None:
            reads = ParameterReads([self._training.model, *self._moving.modules()], self._training.trained.trained())
            its = {(whole.f_code, place) for place in reads.runs(whole, head, loop[1])}
            used = _used([whole], head, *loop, its, self._is_for_steps)
            names = [name for name, value in used if isinstance(value, _NUMBERS)]
            self._tell([name.replace(refusal.DOT, ".") for name in names])

    def _is_for_steps(self, owner: object, attribute: str) -> bool:
        """Whether an object is the dataset, or a module whose functions read this attribute. (A state has it once it
        has changed, but nobody can tell what has changed it first.)
        """
        if self._is_dataset(owner):
            return True
        kind: type = type(owner)
        is_ours = any(owner is module for _, module in self._training.numbers.modules())
        return is_ours and attribute in attribute_code.attributes_read_by(kind)

    def _is_of_state(self, value: Any) -> bool:
        """Whether it is trained, or ``session.state`` or a list or dict in it, by a variable: who joins has what is
        there.
        """
        user, trained = self._training.user, [*self._training.trained.trained().values()]
        if any(value is one for one in trained):
            return True
        if isinstance(value, nn.Module) and any(one is its for its in value.parameters() for one in trained):
            return True
        return value is user or (isinstance(value, WITH_ITEMS) and any(value is one for one in user.values()))

    def _remove_hooks(self) -> None:
        while self._hooks:
            self._hooks.pop().remove()

    def _tell(self, names: Sequence[str]) -> None:
        if names and not self.told:
            self.told += names
            does = "runs the model" if self._ran.places or self._has_run else "reads the model's parameters"
            refusal.note(
                f"the script {does} at an epoch's beginning, and computes there ({', '.join(names[:_SHOWN])}"
                f"{', ...' if len(names) > _SHOWN else ''}) what its steps use; a node that joins, or a run that"
                " resumes, in the middle of the epoch computes it with the model of then: keep it in session.state,"
                " which the steps read, or in the buffers of a module that session.track has"
            )


class _Ran:
    """A hook of the layers: it notes where in the script's functions they run. Copies of the model have another one."""

    def __init__(self) -> None:
        self.places: set[tuple[CodeType, int]] = set()

    def __reduce__(self) -> tuple[Callable[[], object], tuple[()]]:
        return _no_hook, ()

    def __call__(self, _module: nn.Module, _inputs: Any) -> None:
        if torch.compiler.is_compiling():
            return
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            self.places.add((frame.f_code, running_at(frame)))
            frame = frame.f_back


def _no_hook() -> Callable[..., None]:
    return _does_nothing


def _does_nothing(_module: nn.Module, _inputs: Any) -> None:
    return None


def _used(
    frames: Sequence[FrameType],
    head: int,
    inner: FrameType,
    begin: int,
    places: Collection[tuple[CodeType, int]],
    is_for_steps: Callable[[object, str], bool],
) -> Iterator[tuple[str, object]]:
    """What statements before the loop that begins at ``begin`` of the function ``inner`` leave, having run or read the
    model at ``places``, and the loss depends on: variables by name, arrays in attributes, and other attributes of which
    ``is_for_steps`` says so.
    """
    call = None if inner is frames[-1] else running_at(inner)
    names = {*loop_code.read_first(inner.f_code, begin)} & loop_code.behind_loss(inner.f_code, begin, call)
    values = {id(loop_code.value_of(inner, name)) for name in names}
    for frame, start, end in _before(frames, head, inner, begin):
        ran = {place for code, place in places if code is frame.f_code}
        for name in loop_code.left_by(frame, start, end, ran, _may_be_filled):
            variable, *attributes = name.split(".")
            value = loop_code.value_of(frame, variable, *attributes)
            if not attributes:
                is_used = id(value) in values and _is_result(value)
            else:
                owner = parameter_reads.value_of(frame, variable, *attributes[:-1])
                is_used = _is_kept(value) or (not _may_be_filled(value) and is_for_steps(owner, attributes[-1]))
            if is_used:
                yield name, value


def _before(
    frames: Sequence[FrameType], head: int, inner: FrameType, begin: int
) -> Iterator[tuple[FrameType, int, int]]:
    """What runs at an epoch's beginning, before the loop that begins at ``begin`` of the function ``inner``: the
    functions, and between which two instructions.
    """
    for number, frame in enumerate(frames):
        yield frame, 0 if number else head, begin if frame is inner else running_at(frame)
        if frame is inner:
            return


def _may_be_filled(value: Any) -> bool:
    """By a statement that reads it."""
    return isinstance(value, (*_ARRAYS, *WITH_ITEMS))


def _is_kept(value: Any) -> bool:
    """Attributes may be used anywhere; single numbers are mostly for reports."""
    if not isinstance(value, _ARRAYS) or (isinstance(value, torch.Tensor) and not has_shape(value)):
        return False
    return value.shape not in ((), (1,))


def _is_result(value: Any) -> bool:
    """Small numbers and texts may be others that are the same. What is called must have a number (a loss that was made
    there, with its margin).
    """
    if callable(value):
        return any(isinstance(one, _NUMBERS) for _, one in _held_by(value))
    return _may_be_filled(value) or isinstance(value, float | np.floating) or is_of_the_script(type(value))


def _held_by(value: Any) -> Iterator[tuple[str, Any]]:
    """Also in its lists and dicts, as a partial function has them."""
    for name, one in held_by(value):
        yield name, one
        if isinstance(one, WITH_ITEMS):
            yield from held_by(one)
