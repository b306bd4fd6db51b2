"""Where a function fails, or computes what is no number, if a list or dict has nothing in it, or a count is 0: what it
takes from it, divides by, or gives to a function that needs an item.
"""

from __future__ import annotations

from collections.abc import Sequence
from dis import Instruction
from functools import cache
from types import CodeType

from pilot.train.script.branches import under_tests
from pilot.train.script.bytecode import between, instructions
from pilot.train.script.statements import (
    ADDS,
    begin_of,
    comprehension_in,
    items_in,
    path_at,
    read_at,
    statements_in,
    tries,
)

_NEED_AN_ITEM = {
    *("max", "min", "mean", "fmean", "nanmean", "average", "median", "nanmedian", "quantile", "percentile", "mode"),
    *("std", "stdev", "pstdev", "var", "variance", "amax", "amin", "argmax", "argmin", "cat", "concat", "concatenate"),
    *("stack", "vstack", "hstack", "dstack", "column_stack", "choice", "reduce"),
}
_TAKES = {"pop", "popleft", "popitem"}
_DIVIDES = {"/", "//", "/=", "//="}
_SAME = {"len", "float", "int"}
"""Functions of which a count that is 0 comes."""


@cache
def needs_some(code: CodeType, begin: int, end: int, path: str, *, is_count: bool = False) -> bool:
    """Whether a function does so between two instructions, without asking before whether there is anything.

    ``path``: a variable, or an attribute of an object in one; ``is_count``: it has a number.
    """
    whole, asked = instructions(code), _asked(code, begin, path)
    end = _set_anew_at(code, begin, end, path)
    places = [number for number, one in enumerate(whole) if begin <= one.offset < end and one.offset not in asked]
    within = [one for at in places if (one := comprehension_in(whole[at]))]
    if any(_divides_by(whole, at, path) for at in places):
        return True
    if any(needs_some(one, 0, len(one.co_code), path, is_count=is_count) for one in within):
        return True
    if is_count:
        return False
    items = {one.where for one in items_in(code) if one.holder == path and not one.is_changed}
    lengths = [(at, name) for at, name in _lengths(code, begin, end, path) if at - 1 not in asked]
    return (
        any(_takes(whole, at, path) or _gives(whole, at, path) for at in places)
        or any(whole[at].offset in items and _is_by_number(whole, at) for at in places)
        or any(needs_some(code, at, end, name, is_count=True) for at, name in lengths)
    )


def _set_anew_at(code: CodeType, begin: int, end: int, path: str) -> int:
    """Where a statement between two instructions sets it in any case, without reading it; or else the last of them."""
    part = between(code, begin, end)
    jumps = [(one.offset, one.argval) for one in part if "JUMP" in one.opname or one.opname == "FOR_ITER"]
    setting = (one.end for one in statements_in(part) if path in one.sets - one.reads)
    return next((at for at in setting if not any(place < at < to for place, to in jumps)), end)


def _lengths(code: CodeType, begin: int, end: int, path: str) -> list[tuple[int, str]]:
    """The variables that are set to its length (``number = len(losses)``), and after where."""
    statements = statements_in(between(code, begin, end))
    return [(one.end + 1, name) for one in statements if one.reads == {path, "len"} for name in one.sets]


def _asked(code: CodeType, begin: int, path: str) -> set[int]:
    """What runs only if a test or a loop has found something in it, or after a test that else puts something there; and
    from ``begin`` on what runs in a ``try``.
    """
    parts = [part for part in under_tests(code, lambda tested: tested == path) if part]
    filling = [part[0].offset for part in parts if part[0].offset >= begin and _puts_in(part, path)]
    parts += [between(code, at, len(code.co_code)) for at in filling]
    statements = statements_in(instructions(code))
    for one in (each for each in instructions(code) if each.opname == "FOR_ITER"):
        start = next(each.begin for each in statements if one.offset <= each.end)
        if any(path in each.reads for each in statements_in(between(code, start, one.offset))):
            parts.append(between(code, one.offset + 1, one.argval))
    parts += [between(code, *within) for within, _ in tries(code) if within[0] >= begin]
    return {one.offset for part in parts for one in part}


def _puts_in(part: Sequence[Instruction], path: str) -> bool:
    fills = {f"{path}.{name}" for name in ADDS}
    return any(path in one.sets or fills & one.reads for one in statements_in(part))


def _takes(code: Sequence[Instruction], number: int, path: str) -> bool:
    """``losses.pop()``."""
    one = code[number]
    return (
        one.opname == "LOAD_ATTR" and one.argval in _TAKES and ".".join(path_at(code, number)) == f"{path}.{one.argval}"
    )


def _divides_by(code: Sequence[Instruction], number: int, path: str) -> bool:
    """``total / len(losses)``, ``total / count``, and not ``total / max(count, 1)``."""
    if code[number].argrepr not in _DIVIDES or not code[number].opname.startswith("BINARY_OP"):
        return False
    part = code[begin_of(code, number - 1) : number]
    read = set().union(*(one.reads for one in statements_in(part)))
    owners = {path.rpartition(".")[0][:end] for end in range(len(path))}  # of self.count also self is read
    is_plain = not any(one.opname.startswith("BINARY") or one.opname == "LOAD_CONST" for one in part)
    return is_plain and path in read and read <= {path, *owners, *_SAME}


def _gives(code: Sequence[Instruction], number: int, path: str) -> bool:
    """``np.mean(losses)``, ``max([one.item() for one in losses])``, and not ``max(len(losses), 1)``."""
    one = code[number]
    if not one.opname.startswith("CALL") or any("default" in str(each.argval) for each in code[number - 2 : number]):
        return False
    begin = begin_of(code, number)
    if _callee(code[begin:number]) not in _NEED_AN_ITEM:
        return False
    inner = [(begin_of(code, other), other) for other in range(begin, number) if code[other].opname.startswith("CALL")]
    others = [span for span in inner if not any(map(comprehension_in, code[span[0] : span[1]]))]
    return any(
        read_at(code, at) == path and not any(first <= at <= last for first, last in others)
        for at in range(begin, number)
    )


def _callee(code: Sequence[Instruction]) -> str:
    """The name of the function, or of the method of what a variable holds, with which these instructions begin."""
    names = ""
    for one in code:
        if one.opname == "LOAD_ATTR" or (
            not names and one.opname in ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF", "LOAD_FAST")
        ):
            names = str(one.argval)
        elif one.opname != "PUSH_NULL" or names:
            return names
    return names


def _is_by_number(code: Sequence[Instruction], number: int) -> bool:
    """Whether it reads one item, and neither a part of all (``losses[-10:]``) nor what there may be (``get``)."""
    before = code[number - 1]
    is_part = before.opname == "BUILD_SLICE" or isinstance(before.argval, slice)
    return code[number].opname != "LOAD_ATTR" and not is_part
