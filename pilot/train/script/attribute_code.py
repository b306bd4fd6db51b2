"""What a script's functions do with attributes of objects, read from their code: which they set in any case, before
they read them, and which they ask for.
"""

from __future__ import annotations

import inspect
from collections.abc import Collection, Iterable, Iterator, Sequence
from dis import Instruction
from functools import cache
from types import CodeType, FrameType, FunctionType

from pilot.train.script.branches import from_some_turn_on
from pilot.train.script.bytecode import between, instructions, running_at
from pilot.train.script.loop_code import heads, paths_used, value_of
from pilot.train.script.objects import is_of_the_script
from pilot.train.script.statements import RETURNS, augmented, loop_at, path_at, read_before_set

_SEEDS = {"seed", "manual_seed", "setstate", "set_state"}
_ASKS = {"hasattr", "getattr", "__dict__", "vars"}
_FAILS = "AttributeError"


def set_at_beginning(frames: Sequence[FrameType], head: int) -> Iterator[tuple[object, str]]:
    """Attributes that each turn of the first function's loop sets before its inner loop begins, and does not read
    before: the object and the name. The inner loop is in the same function, or in one of the next, which it calls.
    """
    found: list[tuple[object, str]] = []
    begin, running = head, {frame.f_code for frame in frames}
    for number, frame in enumerate(frames):
        inner = heads(frame.f_code, running_at(frame))
        if not number:
            if head not in inner:
                return
            inner = inner[inner.index(head) + 1 :]
        end = inner[0] if inner else running_at(frame)
        by_methods = tuple(_set_by_methods(frame, between(frame.f_code, begin, end), running))
        for owner, *names, name in attributes_set(frame.f_code, begin, end, by_methods):
            found.append((value_of(frame, owner, *names), name))
        its = set_from_some_turn_on(frame.f_code, begin, end)
        found += [(value_of(frame, owner, *names), name) for owner, *names, name in its]
        if inner:
            yield from found
            return
        begin = 0


@cache
def set_from_some_turn_on(code: CodeType, begin: int, end: int) -> list[tuple[str, ...]]:
    """Attributes that are set between two instructions in all turns of a loop from one on (``if epoch >= 3``), and not
    read before: the variable, and the attributes of it.
    """
    part, where = between(code, begin, end), from_some_turn_on(code, begin, end)
    first: dict[tuple[str, ...], int] = {}
    for number, one in enumerate(part):
        for _, path in paths_used(part, number):
            first.setdefault(path, one.offset if path[1:] and one.opname == "STORE_ATTR" else -1)
    return sorted(path for path, at in first.items() if at in where and ".".join(path) not in {*augmented(part)})


def set_before_calls(frames: Sequence[FrameType], head: int, *, by_epoch: bool) -> Iterator[tuple[object, str]]:
    """Attributes that each turn of the first function's loop sets before it calls anything that may read them (``for
    self.step in``), or that the function sets so which it calls first, and so on: the object and the name. If turns are
    epochs (``by_epoch``), not those that the running functions, or methods of the object that they name, set later in
    the turn: who joins in the middle of it sets the first value. ``frames``: the running functions, from that one on.
    """
    found, read, later = [], set[str](), set[str]()
    is_first = True
    for number, (frame, then) in enumerate(zip(frames, [*frames[1:], None], strict=True)):
        code, begin = frame.f_code, 0 if number else head
        part = instructions(code) if number else loop_at(code, head)
        end = next((one.offset for one in part if one.opname.startswith("CALL")), begin) if is_first else begin
        later |= attributes_stored([one for one in part if one.offset >= end])
        if is_first:
            its = attributes_set(code, begin, end)
            found += [(value_of(frame, owner, *names), name) for owner, *names, name in its if name not in read]
            read |= {one.argval for one in between(code, begin, end) if one.opname == "LOAD_ATTR"}
            is_first = then is not None and _always_calls(frame, between(code, begin, end + 1), then)
    running = {frame.f_code for frame in frames}
    named = {name for code in running for name in code.co_names}
    for owner, name in found:  # by another name of its object, it may have been read
        called = (code for code in methods(type(owner)) if code.co_name in named and code not in running)
        is_later = name in later or any(name in attributes_stored(instructions(code)) for code in called)
        if not (by_epoch and is_later):
            yield owner, name


def _always_calls(frame: FrameType, part: Sequence[Instruction], then: FrameType) -> bool:
    """Whether the last of these instructions is what has called this function, from its beginning, and no test is
    before.
    """
    is_last = bool(part) and part[-1].offset == running_at(frame)
    goes_on = then.f_code.co_flags & (inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR)
    return is_last and then.f_back is frame and not goes_on and not any("_IF_" in one.opname for one in part)


def _set_by_methods(
    frame: FrameType, part: Sequence[Instruction], running: Collection[CodeType]
) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Where these instructions call methods of the script's objects, and what these set in any case
    (``meter.reset()``); not the ``running`` ones, of which the rest is yet to come.
    """
    for number, one in enumerate(part):
        *owner, name = (path_at(part, number) if one.opname == "LOAD_ATTR" else []) or [""]
        kind = type(value_of(frame, *owner)) if owner else object
        method = inspect.getattr_static(kind, name, None) if is_of_the_script(kind) else None
        if isinstance(method, FunctionType) and method.__code__ not in running:
            yield from ((one.offset, (*owner, attribute)) for attribute in set_by(method.__code__))


def set_by(code: CodeType) -> set[str]:
    """Attributes of a function's first argument that it sets in any case, or seeds."""
    whole = instructions(code)
    seeded = [path_at(whole, number)[:-1] for number, one in enumerate(whole) if one.argval in _SEEDS]
    end = max((one.offset for one in whole if one.opname in RETURNS), default=len(code.co_code))
    found = [*attributes_set(code, 0, end), *map(tuple, seeded)]
    return {name for *owner, name in filter(None, found) if owner == [*code.co_varnames[:1]]}


@cache
def attributes_set(
    code: CodeType, begin: int, end: int, others: tuple[tuple[int, tuple[str, ...]], ...] = ()
) -> list[tuple[str, ...]]:
    """In any case, from one instruction to another, and not read before: the variable, and the attributes of it.
    ``others``: what else is set, and where.
    """
    part = between(code, begin, end + 1)
    every = [[(use, path) for use, path in paths_used(part, number) if path[1:]] for number in range(len(part))]
    for number, one in enumerate(part):
        every[number] += [("STORE", path) for where, path in others if where == one.offset]
    are_set = {path for uses in every for use, path in uses if use == "STORE"}
    return sorted(are_set - read_before_set(code, part, every, at_end=are_set))


def attributes_stored(part: Iterable[Instruction]) -> set[str]:
    """The names of attributes that these instructions set, of whatever objects."""
    return {one.argval for one in part if one.opname == "STORE_ATTR"}


@cache
def attributes_read(code: CodeType) -> frozenset[str]:
    """The names of attributes that a function reads, of whatever objects."""
    return frozenset(one.argval for one in instructions(code) if one.opname == "LOAD_ATTR")


@cache
def asked_for(code: CodeType) -> frozenset[str]:
    """Attributes that a function may ask objects for which may not have them (``hasattr``, ``getattr``, ``try``)."""
    inner = (one for one in code.co_consts if isinstance(one, CodeType))
    names = {one for one in code.co_consts if isinstance(one, str)} if _ASKS.intersection(code.co_names) else set()
    tried = attributes_read(code) if _FAILS in code.co_names else frozenset[str]()
    return tried.union(names, *map(asked_for, inner))


@cache
def attributes_read_by(kind: type) -> set[str]:
    """The same, of a class's methods."""
    return {name for code in methods(kind) for name in attributes_read(code)}


@cache
def asked_for_by(kind: type) -> set[str]:
    """The same, by a class's methods."""
    return {name for code in methods(kind) for name in asked_for(code)}


def methods(kind: type) -> list[CodeType]:
    """The functions of a class and its bases."""
    every = (one for base in kind.__mro__ for one in vars(base).values())
    return [one.__code__ for one in every if isinstance(one, FunctionType)]
