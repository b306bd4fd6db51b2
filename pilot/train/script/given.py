"""What a statement gives to the script's functions that it calls, before they run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from dis import Instruction
from functools import partial
from types import CodeType, FrameType, FunctionType, MethodType
from typing import Any, cast

from pilot.train.script.bytecode import between
from pilot.train.script.called import Part, in_frame
from pilot.train.script.loop_code import value_of
from pilot.train.script.refusal import is_of_a_library
from pilot.train.script.statements import Statement, begin_of, path_at, read_at, statements_in

_CALLS = ("CALL", "CALL_KW")
_BEFORE = ("PRECALL", "KW_NAMES")

_Arguments = dict[int | str, tuple[int, int]]
"""By position or name: from which instruction to which each is computed."""


@dataclass(frozen=True, eq=False)
class _Called:
    """What looks ask of a running function, of one that is called later."""

    f_code: CodeType
    f_locals: dict[str, Any]
    f_globals: dict[str, Any]


def given_to(frame: FrameType, statement: Statement, names: set[str]) -> Iterator[tuple[FrameType, set[str]]]:
    """The functions that get what one of these variables, or attributes of objects in them, has: as an argument, or
    because they are methods of such an object; with its names there.
    """
    return ((called, given) for called, given in calls_of(frame, statement, names) if given)


def calls_of(frame: FrameType, statement: Statement, names: set[str]) -> Iterator[tuple[FrameType, set[str]]]:
    """All functions of the script's, with what they get of these."""
    part = between(frame.f_code, statement.begin, statement.end + 1)
    for number, one in enumerate(part):
        if one.opname not in _CALLS:
            continue
        arguments, at = _arguments(frame.f_code, part, number)
        for function, owner in _functions(frame, part, at):
            if function.__code__ is not frame.f_code and not is_of_a_library(function.__code__.co_filename):
                called, given = _call(frame, part, arguments, function, owner, names)
                yield cast(FrameType, called), given


def _call(
    frame: FrameType,
    part: Sequence[Instruction],
    arguments: _Arguments,
    function: FunctionType,
    owner: object,
    names: set[str],
) -> tuple[_Called, set[str]]:
    code = function.__code__
    parameters = code.co_varnames[owner is not None : code.co_argcount + code.co_kwonlyargcount]
    values, given = dict[str, Any](), set[str]()
    if owner is not None:
        values[code.co_varnames[0]] = owner
        given |= {f"{code.co_varnames[0]}.{name}" for name in _of(frame, owner, names)}
    for place, (begin, end) in arguments.items():
        name = place if isinstance(place, str) else dict(enumerate(parameters)).get(place, "")
        values[name] = next(iter(_values(frame, part, end)), None)
        if name and any(each.reads & names for each in statements_in(part[begin : end + 1])):
            given.add(name)
    return _Called(code, values, function.__globals__), given


def seen_from(frame: FrameType, names: set[str], other: FrameType) -> set[str]:
    """Names of attributes of objects, as ``other`` has them in its variables."""
    found = set()
    for variable, value in other.f_locals.items():
        found |= {f"{variable}.{name}" for name in _of(frame, value, names)}
    return found


def _of(frame: FrameType, owner: object, names: set[str]) -> Iterator[str]:
    """Which of these are attributes of this object."""
    for path in names:
        holder, _, name = path.rpartition(".")
        if holder and owner is not None and value_of(frame, *holder.split(".")) is owner:
            yield name


def _arguments(code: CodeType, part: Sequence[Instruction], number: int) -> tuple[_Arguments, int]:
    """Of a call; and the instruction that loads the function."""
    keywords: tuple[str, ...] = ()
    at, count = number - 1, part[number].arg or 0
    if part[number].opname == "CALL_KW":
        keywords, at = part[at].argval, at - 1
    while part[at].opname in _BEFORE:
        if part[at].opname == "KW_NAMES":
            keywords = code.co_consts[part[at].arg or 0]
        at -= 1
    found: _Arguments = {}
    for place in range(count - 1, -1, -1):
        begin = begin_of(part, at)
        which = place - (count - len(keywords))
        found[keywords[which] if which >= 0 else place] = begin, at
        at = begin - 1
    return found, max(0, at - (part[at].opname == "PUSH_NULL"))


def _functions(frame: FrameType, part: Sequence[Instruction], at: int) -> Iterator[tuple[FunctionType, object]]:
    """Which the instruction ``at`` may load, and whose methods they are."""
    path = _path(part, at)
    if named := _named(frame, part, at):
        owners, name = named
    else:
        owners, name = _whole(frame).values(".".join(path[:-1])) if path[1:] else [], path[-1] if path else ""
        for value in _whole(frame).values(".".join(path)) if path else ():
            if isinstance(value, FunctionType):
                yield value, None
            elif isinstance(value, MethodType):
                yield cast(FunctionType, value.__func__), value.__self__
            else:
                yield from _methods(value, "__call__")
    for owner in owners:
        yield from _methods(owner, name)


def _methods(owner: object, name: str) -> Iterator[tuple[FunctionType, object]]:
    method = getattr(type(owner), name, None)
    if isinstance(method, FunctionType):
        yield method, owner


def _named(frame: FrameType, part: Sequence[Instruction], at: int) -> tuple[list[object], str] | None:
    """The objects and the name, if the instruction ``at`` calls ``getattr``."""
    if part[at].opname not in _CALLS:
        return None
    arguments, by = _arguments(frame.f_code, part, at)
    if read_at(part, by) != getattr.__name__ or not {0, 1} <= arguments.keys():
        return None
    owners, names = (_values(frame, part, arguments[place][1]) for place in (0, 1))
    return next(((owners, name) for name in names if isinstance(name, str)), None)


def _values(frame: FrameType, part: Sequence[Instruction], at: int) -> list[object]:
    """What the instruction ``at`` may load: of a variable in a loop, what is in the list."""
    if part[at].opname == "LOAD_CONST":
        return [part[at].argval]
    path = _path(part, at)
    return _whole(frame).values(".".join(path)) if path else []


def _whole(frame: FrameType) -> Part:
    code = frame.f_code
    return Part(code, 0, len(code.co_code), partial(in_frame, frame), True)


def _path(part: Sequence[Instruction], number: int) -> list[str]:
    if part[number].opname in ("LOAD_ATTR", "LOAD_METHOD"):
        return path_at(part, number)
    return [name] if (name := read_at(part, number)) else []
