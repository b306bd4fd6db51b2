"""A turn of the script's loop over its batches, as its code has it: what comes from the batch there, or from the loss,
and what these decide or change.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dis import Instruction
from functools import cache
from itertools import takewhile
from types import CodeType, FrameType

import numpy as np
import torch

from pilot.train.data.training_loader import TrainingLoader
from pilot.train.script import loop_code, parameter_reads, refusal
from pilot.train.script.branches import leaves, tests_in
from pilot.train.script.bytecode import between, instructions, running_at
from pilot.train.script.drawing import draws
from pilot.train.script.statements import (
    RETURNS,
    SIZES,
    Statement,
    added_to,
    changed_in_place,
    counts_some,
    items_in,
    loop_at,
    path_at,
    statements_in,
    uses_in,
)
from pilot.train.script.steering import changes_parameters, parameters_in, sets_options, steers, updates
from pilot.train.script.step_uses import end_of

_LOADS = "load_state_dict"
_STATE = "state"
_DATA = "data"
_GRADIENT = ".grad"
_OF_GRADIENTS = {"backward", "autograd"}
_ALIKE = {"step", "sum", "evaluate"}
_STEPS_OR_STOPS = {"step", "stop"}
_GIVE = {"setdefault", "update"}
_NO_NUMBER = {"isnan", "isinf", "isfinite"}
_TAKES = {"item", "tolist", "float"}
"""How a number comes from a tensor, and not from its size."""


def left_by(frame: FrameType, head: int) -> set[str]:
    """What comes from a loss after a turn of the loop that begins at ``head``: variables, and attributes."""
    return {name for name in Turn(frame, head, (), ()).left() if "[" not in name}


class Turn:
    """The statements of a running function's loop that begins at ``head``, or of the whole function, in their order;
    ``given``: what it sets to a loss that another function returns; ``parameters``: the session's.
    """

    def __init__(
        self, frame: FrameType, head: int | None, given: Collection[str], parameters: Iterable[torch.Tensor]
    ) -> None:
        self._frame, self._head = frame, head
        self._parameters = set(map(id, parameters))
        self._statements = _statements(frame.f_code, head)
        self._items = [one for one in items_in(frame.f_code) if one.key]
        self._from_loss = defaultdict[int, set[str]](set)
        for number, one in enumerate(self._statements):
            is_call = self._is_running(one)
            if is_call:
                self._from_loss[number] |= one.sets.intersection(given)
            if is_call or not _OF_GRADIENTS.isdisjoint(one.attributes) or self._is_sessions(one):
                for name in filter(self._is_loss, one.reads):
                    self._from_loss[self._set_before(number, name)].add(name)

    def decides_by(self) -> list[str]:
        """By what of a loss it changes how it trains; empty: it does not."""
        found = set(self._from_loss[-1])
        tests = [(part[0].offset, *one) for one in tests_in(self._frame.f_code) if (part := one[1])]
        tests = [(at, test, part) for at, test, part in tests if not self._ends_without_number(test, part)]
        under = set[int]()
        for _ in range(2 if self._statements else 0):  # what one turn leaves to the next
            begin = self._statements[0].begin
            for number, one in enumerate(self._statements):
                its = [part for at, test, part in tests if begin <= at <= one.begin and self._reads(test, found)]
                if self._steps_by(number, found) or any(map(self._acts, its)):
                    return sorted(name for name in found if "[" not in name)
                begin = one.begin + 1
                self._pass(number, one, found)
                under.update(each.offset for part in its for each in part)
                if one.begin in under and not self._is_sessions(one):
                    found |= {name for name in one.sets if self._is_number(name)}
            rest = [part for at, test, part in tests if begin <= at < self._end and self._reads(test, found)]
            if any(map(self._acts, rest)):  # the last test, from Python 3.12 on
                return sorted(name for name in found if "[" not in name)
        return []

    def changes_by_batch(self, changes: Callable[[int], bool]) -> list[str]:
        """By what of its batch it changes something, as ``changes`` says of a statement; empty: it does not."""
        return next((sorted(used) for number, used in self._from_batch() if used and changes(number)), [])

    def filled_from_batch(self) -> set[str]:
        """What a turn changes by what it computes from its batch, or from the loss, and not by how many samples that
        has: attributes of objects in variables, items, and what variables hold that is changed in place.
        """
        filled = set[str]()
        for one in (self._statements[number] for number, used in self._from_batch() if used):
            filled |= one.stores_in | added_to(one) | changed_in_place(one) | self._named(one, is_changed=True)
            filled.update(self._given_to_state(one))
            filled |= {name for name in one.sets if _is_attribute(name) and not self._is_counted(one, name)}
        return filled

    def sets_options_by(self) -> list[str]:
        """By what of its batch, besides its size, or by what it draws it sets options; empty: it does not."""
        found, seen = set[str](), set[str]()
        for number, one in [*enumerate(self._statements)] * 2:  # what one turn leaves to the next
            used = self._apart(one, found)
            if used and sets_options(one, self._frame):
                return sorted(used)
            if used and not _is_of_size(one, self._frame.f_code):
                found |= one.sets | added_to(one)
            elif self._gets_batch(number):
                found |= set(filter(self._is_of_samples, one.sets))
            else:
                found -= one.sets - one.adds_to
            seen |= found
        for test, part in tests_in(self._frame.f_code):
            used = set[str]().union(
                *(self._apart(one, seen) for one in test if not _is_of_size(one, self._frame.f_code))
            )
            if used and any(sets_options(one, self._frame) for one in self._within(part)):
                return sorted(used)
        return []

    def _apart(self, one: Statement, found: set[str]) -> set[str]:
        """What a statement reads of what the ranks have apart: ``found``, and what draws a number. (A function that
        steps may return what the session does.)
        """
        if self._is_sessions(one) or self._is_running(one):
            return set()
        return {path for path in one.reads if path in found or draws(loop_code.value_of(self._frame, *path.split(".")))}

    def _within(self, part: Sequence[Instruction]) -> list[Statement]:
        return [one for one in self._statements if part and part[0].offset <= one.begin <= part[-1].offset]

    def _given_to_state(self, one: Statement) -> Iterator[str]:
        """The items that it gives by a method: ``session.state.update(mean=mean)``."""
        part = between(self._frame.f_code, one.begin, one.end + 1)
        keys = {key for each in part if isinstance(each.argval, tuple) for key in each.argval} | one.texts
        for holder, _, method in (path.rpartition(".") for path in one.reads):
            if method in _GIVE and self.is_state(holder):
                yield from (f"{holder}[{key!r}]" for key in keys)

    def _from_batch(self) -> Iterator[tuple[int, set[str]]]:
        """The statements, but the session's, and what each reads that comes from the turn's batch."""
        found = set[str]()
        for number, one in enumerate(self._statements):
            if self._is_sessions(one):
                found -= one.sets
                continue
            used = one.reads & found
            yield number, used
            if used or self._gets_batch(number):
                found |= {name for name in one.sets | added_to(one) if self._may_have_samples(one, name)}
            elif not one.adds_to:
                found -= one.sets

    def changes_parameters(self, number: int) -> bool:
        """Whether it changes parameters, besides their gradients."""
        return self._changes_ours(number) and not self._is_undone(number)

    def changes_sums(self, number: int) -> bool:
        """Whether it sets a gradient that was summed."""
        if not any(loop_code.uses_session(self._frame, one, {"sum"}) for one in self._statements[:number]):
            return False
        holders = (path.removesuffix(_GRADIENT) for path in self._statements[number].sets if path.endswith(_GRADIENT))
        return any(id(parameter_reads.value_of(self._frame, *one.split("."))) in self._parameters for one in holders)

    def _is_number(self, name: str) -> bool:
        return isinstance(loop_code.value_of(self._frame, *name.split(".")), loop_code.NUMBERS)

    def _is_plain_number(self, name: str) -> bool:
        return isinstance(loop_code.value_of(self._frame, *name.split(".")), int | float)

    def _gets_batch(self, number: int) -> bool:
        one = self._statements[number]
        if number == 0 or (number == 1 and not one.reads):  # for i, (x, y) in enumerate(loader)
            return self._statements[0].begin == self._head
        paths = [path.split(".") for path in one.reads]
        return any(
            path[-1] == "next" and isinstance(loop_code.value_of(self._frame, *path[:-1]), TrainingLoader)
            for path in paths
            if path[1:]
        )

    def _is_of_samples(self, name: str) -> bool:
        """And no number, which may be the batch's."""
        return isinstance(
            loop_code.value_of(self._frame, *name.split(".")), torch.Tensor | np.ndarray | list | tuple | dict
        )

    def _is_counted(self, one: Statement, name: str) -> bool:
        """Whether it is changed by how many samples there are."""
        used = one.attributes | one.reads
        return self._is_plain_number(name) and not SIZES.isdisjoint(used) and _TAKES.isdisjoint(used)

    def _may_have_samples(self, one: Statement, name: str) -> bool:
        """The same of what it has just set, or a number of them; also if that is not known any more."""
        used = one.attributes | one.reads
        if self._is_of_samples(name):
            return True
        is_gone = name not in self._frame.f_locals and "." not in name
        return SIZES.isdisjoint(used) if is_gone else self._is_plain_number(name) and not _TAKES.isdisjoint(used)

    def keys_from_loss(self) -> set[str]:
        """Keys of ``session.state`` under which a turn leaves to the next what comes from a loss."""
        found = set(self._from_loss[-1])
        for number, one in [*enumerate(self._statements)] * 2:
            self._pass(number, one, found)
        its = (item for item in self._items if item.is_changed and f"{item.holder}[{item.key!r}]" in found)
        return {item.key for item in its if self.is_state(item.holder)}

    def makes(self, name: str) -> bool:
        """Whether it sets this variable."""
        return any(name in one.sets for one in self._statements)

    def is_state(self, holder: str) -> bool:
        """Whether it is the session's."""
        *owner, name = holder.split(".")
        return name == _STATE and loop_code.is_session(self._frame, owner)

    def left(self) -> set[str]:
        """What comes from a loss after it."""
        found = set(self._from_loss[-1])
        for number, one in enumerate(self._statements):
            self._pass(number, one, found)
        return found

    def given(self) -> set[str]:
        """What the function that called this one sets, if this one returns what comes from a loss."""
        found = self.left()
        returning = [one.offset for one in instructions(self._frame.f_code) if one.opname in RETURNS]
        reading = [one for one in self._statements if self._reads([one], found)]
        caller = self._frame.f_back
        if caller is None or not any(one.begin <= at <= one.end for one in reading for at in returning):
            return set()
        calls = (one for one in _statements(caller.f_code, None) if one.begin <= running_at(caller) <= one.end)
        return {name for one in calls for name in one.sets}

    def _is_running(self, one: Statement) -> bool:
        return one.begin <= running_at(self._frame) <= one.end

    def _set_before(self, number: int, name: str) -> int:
        """Which statement sets it; -1: none."""
        return next((at for at in range(number, -1, -1) if name in self._statements[at].sets), -1)

    def _is_loss(self, path: str) -> bool:
        value = loop_code.value_of(self._frame, *path.split("."))
        return isinstance(value, torch.Tensor) and value.numel() == 1 and not value.is_leaf

    def _is_sessions(self, one: Statement) -> bool:
        """Whether it calls methods of the session, which return the same on all ranks."""
        return loop_code.uses_session(self._frame, one, _ALIKE)

    def _pass(self, number: int, one: Statement, found: set[str]) -> None:
        """``found``: what comes from a loss before this statement, and then after it."""
        are_set = {name for name in one.sets if "." not in name} | self._named(one, is_changed=True)
        if self._reads([one], found):
            found |= are_set
        else:
            found -= are_set - one.adds_to
        found |= self._from_loss[number]

    def _reads(self, statements: Sequence[Statement], found: set[str]) -> bool:
        return any(
            not self._is_sessions(one) and (one.reads | self._named(one, is_changed=False)) & found
            for one in statements
        )

    def _named(self, one: Statement, *, is_changed: bool) -> set[str]:
        its = (item for item in self._items if one.begin <= item.where <= one.end and item.is_changed == is_changed)
        return {f"{item.holder}[{item.key!r}]" for item in its}

    def _is_undone(self, number: int) -> bool:
        """Whether parameters, which it changes, are set once more before the step (sharpness-aware minimization)."""
        rest = takewhile(lambda one: not self._is_sessions(one), self._statements[number + 1 :])
        return any(map(self._sets_parameters, rest))

    def _changes_ours(self, number: int) -> bool:
        """Whether it changes parameters of the session, and not of a copy that is thrown away (Reptile), or a batch. A
        loop's variable has them from the model that this goes through; the next loop may set it to others.
        """
        one = self._statements[number]
        if not changes_parameters(one, self._frame):
            return False
        before = {self._set_before(number - 1, name) for name in one.reads}
        paths = one.reads.union(*(self._statements[at].reads for at in before if at >= 0))
        values = [loop_code.value_of(self._frame, *path.split(".")) for path in paths]
        its = [p for model in values if isinstance(model, torch.nn.Module) for p in model.parameters()]
        its += [p for held in values if isinstance(held, list | tuple) for p in held]
        return not self._parameters.isdisjoint(map(id, its or parameters_in(one, self._frame)))

    def _sets_parameters(self, one: Statement) -> bool:
        is_data = any(path.rpartition(".")[2] == _DATA for path in one.sets)
        return is_data or changes_parameters(one, self._frame)

    def _acts(self, part: Sequence[Instruction]) -> bool:
        """Whether what runs only if a test says so decides how the script trains."""
        return self._is_left_by(part) or any(
            steers(one, self._frame)
            or _LOADS in one.attributes
            or loop_code.uses_session(self._frame, one, _STEPS_OR_STOPS)
            for one in statements_in(part)
        )

    def _is_left_by(self, part: Sequence[Instruction]) -> bool:
        return self._head is not None and leaves(part, self._end)

    @property
    def _end(self) -> int:
        code = self._frame.f_code
        return len(code.co_code) if self._head is None else end_of(code, self._head)

    def _ends_without_number(self, test: Sequence[Statement], part: Sequence[Instruction]) -> bool:
        """Whether it leaves the loop, or its turn, if a loss is no number, which ends training in any case."""
        if all(_NO_NUMBER.isdisjoint(one.attributes | one.reads) for one in test):
            return False
        return self._is_left_by(part) or any("JUMP_BACKWARD" in one.opname for one in part)

    def _steps_by(self, number: int, found: set[str]) -> bool:
        """Whether it gives one of these to a scheduler, or an average, or sets an option by it."""
        one = self._statements[number]
        if not self._reads([one], found) or not steers(one, self._frame):
            return False
        if changes_parameters(one, self._frame) and (self._is_undone(number) or not self._changes_ours(number)):
            return False
        part = between(self._frame.f_code, one.begin, one.end + 1)
        loads = (at for at, each in enumerate(part) if each.opname == "LOAD_ATTR")
        calls = [at for at in loads if updates(path_at(part, at), self._frame)]
        after = part[calls[-1] :] if calls else part  # another call may test one, before it raises an error
        return any(use == "LOAD" and name in found for _, use, name in uses_in(after))


@cache
def _statements(code: CodeType, head: int | None) -> tuple[Statement, ...]:
    """Of the loop that begins at ``head``, or of the whole function; without the tests before them (``if``)."""
    part = instructions(code) if head is None else loop_at(code, head)
    found = []
    for one in statements_in(part):
        within = between(code, one.begin, one.end + 1)
        before = [each.offset for each in within if _is_before(each, one)]
        found += statements_in([each for each in within if not before or each.offset > before[-1]])
    return tuple(found)


def _is_of_size(one: Statement, code: CodeType) -> bool:
    """Whether it computes with how many samples or tokens there are, and takes no number from a tensor."""
    used = one.attributes | one.reads
    return _TAKES.isdisjoint(used) and (not SIZES.isdisjoint(used) or counts_some(one, code))


def _is_attribute(name: str) -> bool:
    return "." in name or refusal.DOT in name


def _is_before(each: Instruction, one: Statement) -> bool:
    """Whether it ends a test, or what one leads to (``raise``), before this statement; not in a comprehension."""
    leaves = each.opname.startswith("JUMP_BACKWARD") and each.argval < one.begin
    return leaves or each.opname.startswith("RAISE") or ("_IF_" in each.opname and each.argval > one.end)
