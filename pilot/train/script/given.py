"""What a statement gives to the script's functions that it calls, before they run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from dis import Instruction
from types import CodeType, FrameType, FunctionType, MethodType
from typing import Any, cast

from pilot.train.script.bytecode import between
from pilot.train.script.loop_code import value_of
from pilot.train.script.refusal import is_of_a_library
from pilot.train.script.statements import Statement, begin_of, path_at, read_at, statements_in

_BEFORE = ("PRECALL", "KW_NAMES")


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
    part = between(frame.f_code, statement.begin, statement.end + 1)
    for number, one in enumerate(part):
        if one.opname not in ("CALL", "CALL_KW"):
            continue
        arguments, at = _arguments(frame.f_code, part, number)
        function, owner = _function(frame, _path(part, at))
        if function is None or is_of_a_library(function.__code__.co_filename):
            continue
        code = function.__code__
        parameters = code.co_varnames[owner is not None : code.co_argcount + code.co_kwonlyargcount]
        values, given = dict[str, Any](), set[str]()
        if owner is not None:
            values[code.co_varnames[0]] = owner
            given |= {f"{code.co_varnames[0]}.{name}" for name in _of(frame, owner, names)}
        for place, (begin, end) in arguments.items():
            name = place if isinstance(place, str) else dict(enumerate(parameters)).get(place, "")
            values[name] = _value(frame, _path(part, end))
            if name and any(each.reads & names for each in statements_in(part[begin : end + 1])):
                given.add(name)
        if given:
            yield cast(FrameType, _Called(code, values, function.__globals__)), given


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


def _arguments(
    code: CodeType, part: Sequence[Instruction], number: int
) -> tuple[dict[int | str, tuple[int, int]], int]:
    """By position or name: from which instruction to which each is computed; and the one that loads the function."""
    keywords: tuple[str, ...] = ()
    at, count = number - 1, part[number].arg or 0
    if part[number].opname == "CALL_KW":
        keywords, at = part[at].argval, at - 1
    while part[at].opname in _BEFORE:
        if part[at].opname == "KW_NAMES":
            keywords = code.co_consts[part[at].arg or 0]
        at -= 1
    found: dict[int | str, tuple[int, int]] = {}
    for place in range(count - 1, -1, -1):
        begin = begin_of(part, at)
        which = place - (count - len(keywords))
        found[keywords[which] if which >= 0 else place] = begin, at
        at = begin - 1
    return found, max(0, at - (part[at].opname == "PUSH_NULL"))


def _function(frame: FrameType, path: Sequence[str]) -> tuple[FunctionType | None, object]:
    """And whose method it is."""
    value, owner = _value(frame, path), _value(frame, path[:-1])
    if isinstance(value, MethodType):
        return cast(FunctionType, value.__func__), value.__self__
    if isinstance(value, FunctionType):
        return value, None
    owner, name = (owner, path[-1]) if value is None and path else (value, "__call__")
    method = getattr(type(owner), name, None)
    return (method, owner) if isinstance(method, FunctionType) else (None, None)


def _path(part: Sequence[Instruction], number: int) -> list[str]:
    if part[number].opname in ("LOAD_ATTR", "LOAD_METHOD"):
        return path_at(part, number)
    return [name] if (name := read_at(part, number)) else []


def _value(frame: FrameType, path: Sequence[str]) -> object:
    return value_of(frame, *path) if path else None
