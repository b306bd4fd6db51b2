"""Tells of numbers with which the script begins an epoch, and which each batch changes and uses for its loss or for its
step (:mod:`pilot.train.script.steering`): a temperature that is lowered, a count of batches that weights a term or sets
the learning rate; also of iterators, lists, objects and random generators that it makes there, from which each batch
takes something for its loss. A process that joins in the middle of the epoch runs its beginning, too.

Most numbers that batches change are sums for a report, so only those are told of from which these are computed; and
so is the number of steps at an epoch's beginning, if the loss is computed from it (``session.steps - start``), or the
learning rate there, if each step changes it. (What the script has from before the session's loop is told of by
:mod:`pilot.train.looks.own_values`.)
"""

from __future__ import annotations

import inspect
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from types import FrameType, FunctionType, GeneratorType

import numpy as np
import torch
from torch import nn

from pilot.train.looks.marks import DEPTH, mark_of, marks_in
from pilot.train.script import loop_code, refusal
from pilot.train.script.bytecode import running_at
from pilot.train.script.iterators import place_of
from pilot.train.script.objects import is_of_the_script
from pilot.train.script.plain_marks import PLAIN, numbers_and_generators, random_state
from pilot.train.script.steering import steering

_LISTS = (list, dict, set, deque)
_NUMBERS = (int, float, np.number)
_STEPS = ".steps"
_RATES = {"param_groups", "get_last_lr"}
_KEPT = {"steps", "state"}
"""What begins with one of these attributes of the session goes on where it was."""


class EpochNumbers:
    """Looks for one session. ``is_rate_of_step``: whether each step changes the learning rate."""

    def __init__(self, *, is_rate_of_step: bool) -> None:
        self._is_rate_of_step = is_rate_of_step
        self._told = self._told_of_steps = False
        self._seen: dict[str, str] = {}
        self._epoch = -1

    def look(self, frames: Sequence[FrameType], head: int, known: Collection[str], epoch: int) -> None:
        """Tell, once, of those that are others than when it looked before (what an object holds: in this epoch, each of
        which may make another one).

        Parameters
        ----------
        frames : the running functions, from the one with the session's loop over epochs on
        head : where that loop begins
        known : names of what it was told of already
        """
        if epoch != self._epoch:
            self._seen = {name: value for name, value in self._seen.items() if not isinstance(value, _Held)}
            self._epoch = epoch
        loop = loop_code.inner_loop(frames, head)
        if loop is None:
            return
        frame, begin = loop
        start = head if frame is frames[0] else 0
        if not self._told_of_steps:
            is_last = frame is frames[-1]
            self._tell_of_steps("session.steps", [*_computed_from(_are_steps, frame, start, begin, is_last)])
            if self._is_rate_of_step and not self._told_of_steps:
                self._tell_of_steps("the learning rate", [*_computed_from(_are_rates, frame, start, begin, is_last)])
        if not self._told:
            is_called = frame is not frames[0]
            now = dict(_candidates(frame, start, begin, frame is frames[-1]))
            self._tell(now | (dict(_given(frame, begin, frame is frames[-1], known)) if is_called else {}), known)

    def _tell_of_steps(self, what: str, names: Sequence[str]) -> None:
        if names:
            self._told_of_steps = True
            refusal.note(
                f"the script's loss depends on {what} at an epoch's beginning ({', '.join(names)}), which is"
                " another number there for a node that joins, or a run that resumes, in the middle of the epoch: use"
                " the number that enumerate(loader) gives, or keep it in session.state, which the steps read"
            )

    def _tell(self, now: dict[str, str], known: Collection[str]) -> None:
        names = [name for name, value in now.items() if name not in known and self._seen.get(name, value) != value]
        self._seen |= now
        if names:
            self._told = True
            refusal.note(
                "the script's loss, or its step, depends on what each batch leaves to the next one, beginning with a"
                f" value of the epoch's ({', '.join(names)}); a node that joins, or a run that resumes, in the middle"
                " of an epoch begins with that value, and a batch that runs again changes it twice: compute it from"
                " session.steps, or from the number that enumerate(loader) gives, or keep it in session.state"
            )


def _computed_from(
    are_such: Callable[[FrameType, Collection[str]], bool], frame: FrameType, start: int, begin: int, is_last: bool
) -> Iterator[str]:
    """Variables with numbers that are set from such paths between ``start`` and the loop that begins at ``begin``, and
    in which it only reads them.
    """
    code = frame.f_code
    changed = {name for name, _ in loop_code.handed_on(frame, begin)}
    used = loop_code.behind_loss(code, begin, None if is_last else running_at(frame))
    for name in used.intersection(loop_code.read_first(code, begin)) - changed:
        paths = loop_code.paths_to_set(code, start, begin, name)
        if are_such(frame, paths) and isinstance(loop_code.value_of(frame, name), int | float):
            yield name


def _are_steps(frame: FrameType, paths: Collection[str]) -> bool:
    owners = [one.removesuffix(_STEPS).split(".") for one in paths if one.endswith(_STEPS)]
    return any(loop_code.is_session(frame, owner) for owner in owners)


def _are_rates(_frame: FrameType, paths: Collection[str]) -> bool:
    return any(one.rpartition(".")[2] in _RATES for one in paths if "." in one)


def _candidates(frame: FrameType, start: int, begin: int, is_last: bool) -> Iterator[tuple[str, str]]:
    """Variables that are set between ``start`` and the loop that begins at ``begin``, and their values as texts; also
    iterators that are asked for what the loss uses, lists from which it is taken, and what has numbers or draws them: a
    dict, an object of the script's, a random generator.
    """
    code = frame.f_code
    steers = steering(frame, begin)
    used = loop_code.behind_loss(code, begin, None if is_last else running_at(frame), steers)
    used_here = loop_code.behind_loss(code, begin, None, steers)
    found: dict[str, object] = {
        name: value for name, value in loop_code.handed_on(frame, begin) if isinstance(value, loop_code.NUMBERS)
    }
    for name in loop_code.read_first(code, begin):
        value = loop_code.value_of(frame, name)
        if isinstance(value, Iterator) and (place := place_of(value)) is not None:
            found[name] = place
        elif isinstance(value, _LISTS) and name in loop_code.popped(code, begin):
            found[name] = len(value)
        elif (state := random_state(value)) is not None:
            found[name] = _Drawn(state)
        elif name in used_here and (content := _content(frame, value)):  # a meter is only given to others
            found[name] = _Held(content)
    for name, value in found.items():
        read = loop_code.read_to_set(code, start, begin, name) if name in used and "." not in name else None
        goes_on = read is not None and bool(read & _KEPT) and not isinstance(value, _Drawn)
        if read is not None and not goes_on:
            yield name, value if isinstance(value, _Held) else repr(value)


def _given(frame: FrameType, begin: int, is_last: bool, known: Collection[str]) -> Iterator[tuple[str, str]]:
    """The numbers that a function with the loop got as arguments (``epoch * len(loader)``), and their values. Not of
    ``session.steps``, nor of what its loop keeps in ``session.state``.
    """
    code, caller = frame.f_code, frame.f_back
    if caller is None or code.co_flags & inspect.CO_GENERATOR:
        return
    used = loop_code.behind_loss(code, begin, None if is_last else running_at(frame), steering(frame, begin))
    call = loop_code.running_statement(caller)
    keeps = any(path.endswith(".state") for one in loop_code.statements_of(code, begin) for path in one.stores_in)
    is_known = any(name in known and isinstance(loop_code.value_of(caller, name), _NUMBERS) for name in call.reads)
    if is_known or "steps" in call.attributes or (keeps and "state" in call.attributes):
        return
    for name, value in loop_code.handed_on(frame, begin):
        is_argument = name in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        if is_argument and name in used and isinstance(value, _NUMBERS):
            yield name, repr(value)


class _Held(str):
    """What an object holds, as a text."""


class _Drawn(str):
    """The state of a random generator: seeded by ``session.steps`` it still begins where that was."""


def _content(frame: FrameType, value: object) -> object:
    """What changes if a batch changes it: a dict, a list, a tensor, an object of the script's, what a function or a
    generator has that an epoch's beginning makes (besides variables of the one that runs).
    """
    if isinstance(value, GeneratorType) and mark_of(value, is_variable=True) is None:  # it has ended, or has batches
        return None
    if type(value) in (torch.Tensor, np.ndarray):
        return mark_of(value, is_variable=True)
    if isinstance(value, list | deque | set):
        return f"{len(value)} items"
    if isinstance(value, dict | FunctionType | GeneratorType | partial):
        around = {(id(value), f".{name}") for name in frame.f_code.co_cellvars}
        marks = marks_in("its", value, set(), around, DEPTH)
        return {path: mark for path, mark in marks if isinstance(mark, PLAIN)}
    is_object = is_of_the_script(type(value)) and not isinstance(value, nn.Module)
    return numbers_and_generators(value) if is_object else None
