"""The instructions of a script's functions, in the form of Python 3.11 whatever runs them, so that who looks at them
needs to know that form only.
"""

from __future__ import annotations

import dis
import re
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from types import CodeType, FrameType
from typing import Any

_TEST = re.compile("POP_JUMP_IF_(TRUE|FALSE|NONE|NOT_NONE)")
_OPPOSITE = {"TRUE": "FALSE", "FALSE": "TRUE", "NONE": "NOT_NONE", "NOT_NONE": "NONE"}
_SLICE = {"BINARY_SLICE": ("BUILD_SLICE", "BINARY_SUBSCR"), "STORE_SLICE": ("BUILD_SLICE", "STORE_SUBSCR")}
_USE_OF_FAST = re.compile("(?:LOAD|STORE)_FAST")
_HASHABLE: dict[str, Any] = {"cache_info": None} if "cache_info" in dis.Instruction._fields else {}


@cache
def instructions(code: CodeType) -> list[dis.Instruction]:
    """Of a function, in the form of Python 3.11. One with a large argument (the jump that ends a long loop) begins at
    its first part, to which jumps go.
    """
    found: list[dis.Instruction] = []
    begin: int | None = None
    handlers = _handlers_begin(code)
    for one in dis.get_instructions(code):
        begin = one.offset if begin is None else begin
        if one.opname == "KW_NAMES" and one.arg is not None:  # dis does not say them
            one = one._replace(argval=code.co_consts[one.arg])
        if one.opname != "EXTENDED_ARG":
            found += _in_parts(one._replace(offset=begin, **_HASHABLE), handlers)
            begin = None
    return [*_without_ends([*_without_items(_with_asserts_in_place(_with_tests_to_the_end(found)))])]


def _without_ends(code: Sequence[dis.Instruction]) -> Iterator[dis.Instruction]:
    """From Python 3.12 on one marks a loop's end, from which it goes on."""
    goes_on = len(code)
    after: dict[int, int] = {}
    for one in reversed(code):
        if one.opname == "END_FOR":
            after[one.offset] = goes_on
        else:
            goes_on = one.offset
    for one in code:
        if one.opname == "FOR_ITER":
            yield one._replace(argval=after.get(one.argval, one.argval))
        elif one.opname != "END_FOR":
            yield one


def _in_parts(one: dis.Instruction, handlers: int) -> list[dis.Instruction]:
    """What does the same in Python 3.11, but for methods: attributes as any other. ``handlers``: where these begin."""
    if one.opname == "LOAD_METHOD":
        return [one._replace(opname="LOAD_ATTR")]
    if one.opname in _SLICE:  # with its two ends
        build, use = _SLICE[one.opname]
        return [_other(one, 0, build, arg=2), _other(one, 1, use)]
    if len(uses := _USE_OF_FAST.findall(one.opname)) == 2:
        return [_other(one, number, use, argval=one.argval[number]) for number, use in enumerate(uses)]
    if one.opname == "COMPARE_OP":
        return [one._replace(argrepr=str(one.argval))]
    if "JUMP_BACKWARD" in one.opname and one.offset >= handlers > one.argval:  # and not to where a loop begins
        return [one._replace(opname="JUMP")]
    return [one]


def _other(one: dis.Instruction, number: int, name: str, **values: Any) -> dis.Instruction:
    return one._replace(opname=name, opcode=dis.opmap[name], offset=one.offset + number, **values)


def _without_items(code: Sequence[dis.Instruction]) -> Iterator[dis.Instruction]:
    """From Python 3.12 on comprehensions are loops of the function around them: there without their own variables, and
    so within one statement.
    """
    items, loops, begins = set[str](), 0, True
    for number, one in enumerate(code):
        if one.opname == "POP_TOP" and number and code[number - 1].opname == "END_FOR":
            continue
        if one.opname == "LOAD_FAST_AND_CLEAR":
            items.add(one.argval)
            begins = True
        if items:
            loops += (one.opname == "FOR_ITER") - (one.opname == "END_FOR")
            begins &= one.opname != "FOR_ITER"
        if "_FAST" in one.opname and one.argval in items:
            yield one._replace(opname="NOP")
            if one.opname == "STORE_FAST" and not (loops or begins):  # the function's own of this name is back
                items.remove(one.argval)
        else:
            yield one


def _handlers_begin(code: CodeType) -> int:
    """Where the handlers of exceptions begin: from Python 3.12 on behind everything else, and they jump back."""
    targets = [one.target for one in exceptions(code)] if sys.version_info >= (3, 12) else []
    return min(targets, default=len(code.co_code))


def exceptions(code: CodeType) -> list[Any]:
    """Its table of them: where each applies, and to where it leads."""
    return [*dis.Bytecode(code).exception_entries]  # type: ignore[attr-defined]  # not in typeshed


def _with_tests_to_the_end(code: Sequence[dis.Instruction]) -> list[dis.Instruction]:
    """If a test says that a loop's turn is over, it jumps to its end; from Python 3.12 on else over a jump back."""
    ends = {one.argval: one.offset for one in code if one.opname == "JUMP_BACKWARD"}
    found: list[dis.Instruction] = []
    for one, after in zip(code, [*code[1:], None], strict=True):
        last = found[-1] if found else one
        test = _TEST.fullmatch(last.opname)
        is_passed_over = test and after and last.argval == after.offset and one.opname == "JUMP_BACKWARD"
        if test and is_passed_over and ends[one.argval] > one.offset:
            found[-1] = last._replace(opname=f"POP_JUMP_IF_{_OPPOSITE[test[1]]}", argval=ends[one.argval])
        else:
            found.append(one)
    return found


def _with_asserts_in_place(code: Sequence[dis.Instruction]) -> list[dis.Instruction]:
    """From Python 3.12 on an ``assert`` at a loop's end raises its error behind the loop, which is not left so."""
    errors = {one.offset for one in code if one.opname == "LOAD_ASSERTION_ERROR"}
    return [
        one._replace(argval=then.offset) if then and "_IF_" in one.opname and one.argval in errors else one
        for one, then in zip(code, [*code[1:], None], strict=True)
    ]


def running_at(frame: FrameType) -> int:
    """Where the instruction begins that this function runs."""
    return _begin_of(frame.f_code, frame.f_lasti)


@cache
def _begin_of(code: CodeType, at: int) -> int:
    return max((one.offset for one in instructions(code) if one.offset <= at), default=at)


def between(code: CodeType, begin: int, end: int) -> list[dis.Instruction]:
    """Those of a function from the instruction at ``begin`` on, and before ``end``."""
    return [one for one in instructions(code) if begin <= one.offset < end]
