"""The instructions of a script's functions, and its statements: which variables these read and set, and which
attributes of objects in them.
"""

from __future__ import annotations

import dis
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from types import CodeType

_OF_VARIABLES = re.compile(r"(LOAD|STORE)_(FAST(?!_AND_CLEAR)|NAME|GLOBAL|DEREF)")
_USE = re.compile("LOAD|STORE")
Use = tuple[int, str, str]
"""Where, LOAD or STORE, and the variable."""


@cache
def instructions(code: CodeType) -> list[dis.Instruction]:
    """Of a function."""
    return list(dis.get_instructions(code))


def between(code: CodeType, begin: int, end: int) -> list[dis.Instruction]:
    """Those of a function from the instruction at ``begin`` on, and before ``end``."""
    return [one for one in instructions(code) if begin <= one.offset < end]


def loop_at(code: CodeType, head: int) -> list[dis.Instruction]:
    """The instructions of the loop that begins at ``head``; none if it runs elsewhere
    (``list(map(train, session.epochs(n)))``).
    """
    ends = [one.offset for one in instructions(code) if "JUMP_BACKWARD" in one.opname and one.argval == head]
    return [one for one in instructions(code) if head <= one.offset <= max(ends, default=-1)]


def uses_in(code: Sequence[dis.Instruction]) -> Iterator[Use]:
    """Of variables, in their order."""
    for one in code:
        if _OF_VARIABLES.match(one.opname):
            names = one.argval if isinstance(one.argval, tuple) else (one.argval,)
            for use, name in zip(_USE.findall(one.opname), names, strict=False):
                yield one.offset, use, name


def path_at(code: Sequence[dis.Instruction], number: int) -> list[str]:
    """Of the attribute of this instruction, from a variable on; empty: it belongs to something else."""
    names = [code[number].argval]
    for one in reversed(code[:number]):
        if one.opname != "LOAD_ATTR":
            variables = [name for _, use, name in uses_in([one]) if use == "LOAD"]
            return [*variables[-1:], *names] if variables else []
        names.insert(0, one.argval)
    return []


def may_be_skipped(code: Sequence[dis.Instruction], where: int, end: int) -> bool:
    """Whether a branch goes past the instruction at ``where``, but not past ``end``. (Inner loops have turns.)"""
    return any("JUMP" in one.opname and one.offset < where < one.argval <= end for one in code)


@dataclass
class Statement:
    """From instruction ``begin`` to ``end``: the names of the variables, and of attributes of objects in them
    (``self.rate``), that it reads and sets, and in which it stores items; and of all ``attributes`` that it reads.
    (What an ``if`` reads counts to the statement after it.)
    """

    begin: int
    end: int = 0
    reads: set[str] = field(default_factory=set)
    attributes: set[str] = field(default_factory=set)
    sets: set[str] = field(default_factory=set)
    stores_in: set[str] = field(default_factory=set)


def statements_in(code: Sequence[dis.Instruction]) -> list[Statement]:
    """The statements of these instructions."""
    found = [Statement(code[0].offset)] if code else []
    is_over = False
    for number, one in enumerate(code):
        if is_over and not one.opname.startswith("STORE_"):  # a, b = ... stores twice
            found.append(Statement(one.offset))
        statement = found[-1]
        statement.end = one.offset
        for _, use, name in uses_in([one]):
            (statement.sets if use == "STORE" else statement.reads).add(name)
        if one.opname in ("LOAD_ATTR", "LOAD_METHOD"):
            statement.attributes.add(one.argval)
        if one.opname in ("LOAD_ATTR", "LOAD_METHOD", "STORE_ATTR") and (path := path_at(code, number)):
            (statement.sets if one.opname == "STORE_ATTR" else statement.reads).add(".".join(path))
        if one.opname == "STORE_SUBSCR" and (holder := _read_at(code, number - 2)):  # before a simple key
            statement.stores_in.add(holder)
        is_over = one.opname == "POP_TOP" or one.opname.startswith("STORE_")
    return found


def under_tests(code: CodeType, tested: Callable[[str], bool]) -> Iterator[list[dis.Instruction]]:
    """What runs only if a test says so, or not, that reads one of these: an attribute of an object in a variable
    (``self.rate``), or a variable that is set from one.
    """
    whole = instructions(code)
    statements = statements_in(whole)
    wanted = {path for one in statements for path in one.reads if tested(path)}
    jumps = [one for one in whole if "JUMP" in one.opname]
    setting = [one for one in statements if one.reads & wanted and len(one.sets) == 1]
    wanted |= {
        name for one in setting if not any(one.begin < jump.offset < one.end for jump in jumps) for name in one.sets
    }
    for one in jumps:
        by_another = any(other.offset < one.offset < other.argval < one.argval for other in jumps)  # a or b
        if "_IF_" in one.opname and one.offset < one.argval and not by_another:
            begin = next(each.begin for each in statements if each.begin <= one.offset <= each.end)
            test = statements_in(between(code, begin, one.offset))
            if any(each.reads & wanted for each in test):
                yield between(code, one.offset + 1, _end_of_both(code, one.offset, one.argval))


def under_equality(code: CodeType, begin: int, end: int) -> Iterator[list[dis.Instruction]]:
    """What runs, between two instructions, only if something equals something else, or is among others: in some of a
    loop's turns, and not in all from one on.
    """
    for one in between(code, begin, end):
        if "_IF_" in one.opname and one.offset < one.argval:
            statement = next(each for each in statements_in(between(code, begin, end)) if one.offset <= each.end)
            test = between(code, statement.begin, one.offset)
            if any(each.opname == "CONTAINS_OP" or str(each.argval) in ("==", "!=") for each in test):
                yield between(code, one.offset + 1, one.argval)


def _end_of_both(code: CodeType, begin: int, end: int) -> int:
    """Where what depends on a test ends whose branch lies between these: after ``else``, or if the branch leaves the
    loop's turn, or the function, after the rest of that.
    """
    last = between(code, begin, end)[-1]
    if last.opname == "JUMP_FORWARD":
        return int(last.argval)
    rest = [one.offset for one in instructions(code) if one.offset >= end]
    if last.opname.startswith("RETURN_"):
        return rest[-1] + 1
    if last.opname.startswith("JUMP_BACKWARD"):
        turns = [one.offset for one in loop_at(code, last.argval)]
        return max([end, *turns])
    return end


def _read_at(code: Sequence[dis.Instruction], number: int) -> str:
    """The variable, or attribute of an object in one, that this instruction reads; empty: it does something else."""
    if code[number].opname == "LOAD_ATTR":
        return ".".join(path_at(code, number))
    return next((name for _, use, name in uses_in([code[number]]) if use == "LOAD"), "")
