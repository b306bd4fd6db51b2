"""Tells of counts of samples, or of tokens, on which a script's learning rate or loss depends (``tokens += (y >=
0).sum()``), as of batches' sizes: each rank counts those of its own share, so on k ranks a schedule takes k times as
long. The ranks' values agree, so no check finds that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from types import FrameType
from typing import Any

import numpy as np
import torch

from pilot.train.script import loop_code, refusal
from pilot.train.script.bytecode import between, running_at
from pilot.train.script.statements import SUMS, Statement, augmented, counts_some, loop_at, uses_in
from pilot.train.script.steering import sets_options
from pilot.train.script.step_uses import RunningStatement, StepUses, parts_between, within_loop
from pilot.train.state.training import Training

_SIZES = {"shape", "size", "numel"}
_MASK = "mask"


class SampleCounts:
    """Looks for one session. ``training``: what it knows."""

    def __init__(self, training: Training) -> None:
        self._training = training
        self._told = False

    def look(self, frames: Sequence[FrameType], head: int, uses_of: Callable[[], StepUses]) -> set[tuple[int, str]]:
        """Tell once. Returns which variable, or attribute of an object in one, it has told of, with the function's (or
        module's) number.

        Parameters
        ----------
        frames : the running functions, from the one on with the session's loop
        head : where that begins
        uses_of : returns what the steps compute with
        """
        if self._told or not frames or not loop_at(frames[0].f_code, head):
            return set()
        if running_at(frames[0]) == head:  # a turn ends
            return set()
        frame, begin = loop_code.inner_loop(frames, head) or (frames[0], head)
        level = next(number for number, one in enumerate(frames) if one is frame)
        user = self._training.user
        uses = uses_of()
        outer = parts_between(frames[0], head, begin if level == 0 else running_at(frames[0]), None, user)
        anew = {key for part in outer for key in part.keys_changed - part.keys_read}
        for one, then in zip(frames[level:], [*frames[level + 1 :], None], strict=True):
            is_loop = one is frame
            within = within_loop(one, begin if is_loop else None)
            start = (head if frame is frames[0] else 0) if is_loop else None
            counts = _Counts(parts_between(one, *within, then, user), user, uses)
            if name := next(counts.found(start, within[0], anew), ""):
                self._tell(name)
                return {place for each in frames for place in _places(each, one, name)}
            if name := next(counts.in_options(), ""):
                self._tell_of_size(name)
                return set()
        return set()

    def _tell(self, name: str) -> None:
        self._told = True
        refusal.note(
            f"the script's learning rate, or its loss, depends on a count of samples or tokens ({name}) to which each"
            " rank adds those of its own share, so that on several ranks it grows more slowly than on one: use"
            " session.samples, the samples of all ranks so far (for tokens, too: these times a sample's mean length)"
        )

    def _tell_of_size(self, name: str) -> None:
        self._told = True
        refusal.note(
            f"the script sets its learning rate, or another option, by the size of its batch ({name}), which is this"
            " rank's share: on several ranks it would be another one than on one: use loader.batch_size, the samples"
            " of all ranks"
        )


class _Counts:
    """In ``parts``, the statements of a loop or a function. ``user``: ``session.state``; ``uses``: what the steps
    compute with.
    """

    def __init__(self, parts: Sequence[RunningStatement], user: Mapping[str, Any], uses: StepUses) -> None:
        self._parts, self._user, self._uses = parts, user, uses
        self._set = {name for part in parts for name in part.statement.sets}
        self._sizes = set[str]()
        for part in parts:
            if self._has_size(part):
                values = {name: loop_code.value_of(part.frame, name) for name in part.statement.sets}
                self._sizes |= {name for name, value in values.items() if _is_whole(value)}

    def found(self, start: int | None, begin: int, anew: set[str]) -> Iterator[str]:
        """Names of counts: keys of ``session.state``, apart from those that begin ``anew`` in each epoch, and variables
        and attributes that are not set between ``start`` and ``begin``, where the loop begins.
        """
        for part in self._parts:
            if self._has_size(part):
                keys = part.keys_changed & self._uses.keys - anew
                yield from (f"session.state[{key!r}]" for key in sorted(keys) if self._adds_to(part, key))
                part_of_code = between(part.frame.f_code, part.statement.begin, part.statement.end + 1)
                for name in sorted(part.statement.sets & part.statement.reads | {*augmented(part_of_code)}):
                    if self._is_kept(part.frame, name, start, begin) and self._is_used(part.frame, name):
                        yield name

    def in_options(self) -> Iterator[str]:
        """By what of a batch's size optimizers' options are set, also by variables of functions that have returned, and
        have no value any more.
        """
        sizes = set[str]()
        for part in self._parts:
            one = part.statement
            if not (self._has_size(part) or one.reads & sizes):
                sizes -= one.sets
            elif sets_options(one, part.frame):
                yield ", ".join(sorted(one.reads & sizes)) or "len(...)"
            else:
                values = {name: loop_code.value_of(part.frame, *name.split(".")) for name in one.sets}
                sizes |= {name for name, value in values.items() if value is None or _is_number(value)}

    def _has_size(self, part: RunningStatement) -> bool:
        """Whether it computes something from the size of a batch, and not from its loss."""
        one, values = part.statement, {name: loop_code.value_of(part.frame, name) for name in part.statement.reads}
        if any(_is_loss(value) for value in values.values()):
            return False
        arguments = part.frame.f_code.co_varnames[: part.frame.f_code.co_argcount]
        batches = {name for name, value in values.items() if name in self._set.union(arguments) and _is_batch(value)}
        return bool(one.reads & self._sizes or (batches and _asks_for_size(part.frame, one, batches)))

    def _adds_to(self, part: RunningStatement, key: str) -> bool:
        """Whether what it stores there comes from what there was."""
        value = self._user.get(key, 0)
        reading = [one.statement for one in self._parts if key in one.keys_read]
        held = {name for one in reading for name in one.sets}
        is_read = key in part.keys_read or held & part.statement.reads
        return bool(is_read) and _is_number(value)

    def _is_kept(self, frame: FrameType, name: str, start: int | None, begin: int) -> bool:
        """Whether this number is from before the loop."""
        variable, _, attribute = name.partition(".")
        if start is None and not attribute:
            return False
        if start is not None and loop_code.read_to_set(frame.f_code, start, begin, variable) is not None:
            return False
        return _is_number(loop_code.value_of(frame, *name.split(".")))

    def _is_used(self, frame: FrameType, name: str) -> bool:
        using = (one for one in self._uses.parts if one.frame is frame)
        return any(name in one.statement.reads and name not in one.statement.sets for one in using)


def _places(frame: FrameType, of: FrameType, name: str) -> Iterator[tuple[int, str]]:
    """The variable, or the attribute of an object, of function ``of`` that has this name, in another function."""
    variable, _, rest = name.partition(".")
    held = loop_code.value_of(of, variable)
    for space, values in ((frame, frame.f_locals), (frame.f_globals, frame.f_globals)):
        same = [other for other, value in values.items() if value is held] if rest else [variable]
        yield from ((id(space), f"{other}.{rest}" if rest else other) for other in same)


def _is_number(value: Any) -> bool:
    return isinstance(value, loop_code.NUMBERS) and getattr(value, "ndim", 0) == 0


def _is_whole(value: object) -> bool:
    if isinstance(value, torch.Tensor):
        return value.ndim == 0 and not value.is_floating_point()
    return isinstance(value, int | np.integer)


def _is_loss(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.ndim == 0 and value.is_floating_point()


def _is_batch(value: object) -> bool:
    is_array = isinstance(value, torch.Tensor | np.ndarray) and value.ndim > 0
    return is_array or isinstance(value, list | tuple | Mapping)


def _asks_for_size(frame: FrameType, statement: Statement, batches: set[str]) -> bool:
    """``len(x)``, ``x.shape[0]``, ``(y != pad).sum()``, ``mask.sum()``."""
    if statement.attributes & _SIZES:
        return True
    part = between(frame.f_code, statement.begin, statement.end + 1)
    read = [name for _, use, name in uses_in(part) if use == "LOAD"]
    if any(name == "len" and then in batches for name, then in pairwise(read)):
        return True
    names_mask = any(_MASK in name for name in (*read, *statement.texts))
    return counts_some(statement, frame.f_code) or (names_mask and bool(statement.attributes & SUMS))
