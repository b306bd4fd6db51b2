"""What a script's function runs only if a test says so, or not: the branches of its ``if``."""

from __future__ import annotations

import dis
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cache
from itertools import dropwhile
from types import CodeType

from pilot.train.script.bytecode import between, instructions
from pilot.train.script.statements import RETURNS, Range, Statement, loop_at, statements_in, uses_in

_EPOCHS = re.compile(r"\b\w*epoch\w*\b")
"""Names of variables that count epochs."""
_STORES = ("STORE_", "POP_TOP")
_DIFFER = ("COMPARE_OP", "CONTAINS_OP", "BINARY_OP", "CALL")


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
    for test, part in tests_in(code):
        if any(one.reads & wanted for one in test):
            yield part


@cache
def tests_in(code: CodeType) -> tuple[tuple[list[Statement], list[dis.Instruction]], ...]:
    """Each test, and what runs only if it says so, or not."""
    whole = instructions(code)
    statements = statements_in(whole)
    jumps = [one for one in whole if "JUMP" in one.opname]
    found = []
    for one in jumps:
        by_another = any(other.offset < one.offset < other.argval < one.argval for other in jumps)  # a or b
        if "_IF_" in one.opname and one.offset < one.argval and not by_another:
            begin = next(each.begin for each in statements if each.begin <= one.offset <= each.end)
            test = statements_in(between(code, begin, one.offset))
            branch = between(code, one.offset + 1, _end_of_both(code, one.offset, one.argval))
            leaves = [each.opname for each in branch] == ["JUMP_BACKWARD"]  # or else, from Python 3.12 on
            found.append((test, [one, *branch] if leaves else branch))
    return tuple(found)


def leaves(part: Sequence[dis.Instruction], end: int) -> bool:
    """Whether these instructions return, or leave the loop that ends before the one at ``end``."""
    return any(one.opname in RETURNS or ("JUMP" in one.opname and one.argval >= end) for one in part)


@cache
def from_some_turn_on(code: CodeType, begin: int, end: int) -> frozenset[int]:
    """Which instructions between two run in all turns of a loop over epochs from one on, and in none before (``if epoch
    >= 3``), or if something is so that is the same in all turns.
    """
    part = between(code, begin, end)
    counts = {*_EPOCHS.findall(" ".join(code.co_varnames + code.co_names)), *_targets(part)}
    from_on, others = list[range](), list[range]()
    for jump, test in _tests(part):
        within = range(jump.offset + 1, jump.argval)
        if jump.opname.endswith("FALSE") and _is_from_on(test, counts):
            from_on.append(within)
        elif any(map(_may_differ, test)):
            others.append(within)
    every = (at for its in from_on for at in its)
    return frozenset(at for at in every if not any(at in its for its in others))


def _tests(part: Sequence[dis.Instruction]) -> Iterator[tuple[dis.Instruction, list[dis.Instruction]]]:
    """Each jump forward that a test makes, and what is computed for it, and not for one before it in its statement."""
    test = list[dis.Instruction]()
    for one in part:
        if "_IF_" in one.opname and one.argval > one.offset:
            yield one, test
        test = [] if "JUMP" in one.opname or one.opname.startswith(_STORES) else [*test, one]


def _targets(part: Sequence[dis.Instruction]) -> Iterator[str]:
    """The variable of the loop that begins there."""
    if part[1:] and part[0].opname == "FOR_ITER":
        yield from (name for _, use, name in uses_in(part[1:2]) if use == "STORE")


def _is_from_on(test: Sequence[dis.Instruction], counts: Collection[str]) -> bool:
    """Whether it compares one of the loop's ``counts``, from the left, with what is the same in all turns."""
    compared = [each.argrepr for each in test if each.opname.startswith(_DIFFER)]
    left = ""
    for number, one in enumerate(dropwhile(lambda one: not one.opname.startswith("LOAD_"), test)):
        if number and one.opname != "LOAD_ATTR":  # self.epoch
            break
        left = next((name for _, use, name in uses_in([one]) if use == "LOAD"), str(one.argval))
    return compared in ([">="], [">"]) and left in counts


def _may_differ(one: dis.Instruction) -> bool:
    return one.opname.startswith(_DIFFER)


@cache
def under_equality(code: CodeType, begin: int, end: int) -> list[tuple[Range, Range]]:
    """What runs, between two instructions, only if something equals something else, or is among others: in some of a
    loop's turns, and not in all from one on; and what runs otherwise.
    """
    part = between(code, begin, end)
    statements = statements_in(part)
    found = []
    for one in (each for each in part if "_IF_" in each.opname):
        to = one.argval if one.argval > one.offset else max(each.offset for each in loop_at(code, one.argval))
        statement = next(each for each in statements if one.offset <= each.end)
        test = between(code, statement.begin, one.offset)
        if to > one.offset + 2 and any(
            each.opname == "CONTAINS_OP" or str(each.argval) in ("==", "!=") for each in test
        ):
            branch = (one.offset + 1, min(to, end))
            otherwise = (to, min(end, max(to, _end_of_both(code, one.offset, to))))
            is_left = between(code, *branch)[-1].opname.startswith(RETURNS)
            is_other = is_left and any(each.argrepr in ("!=", "not in") for each in test)  # if epoch != 3: return
            found.append((otherwise, branch) if is_other else (branch, otherwise))
    return found


def left_with(code: CodeType, begin: int, end: int, texts: Mapping[str, str]) -> list[Range]:
    """What may run between two instructions while variables have these ``texts``: not what tests of them leave out
    (``if phase == "val":``).
    """
    found, at = [], begin
    for first, last in sorted(_left_out(code, texts)):
        if at < first < end:
            found.append((at, first))
        at = max(at, last)
    return [*found, (at, end)] if at < end else found


def _left_out(code: CodeType, texts: Mapping[str, str]) -> Iterator[Range]:
    whole = instructions(code)
    jumps = [one for one in whole if "JUMP" in one.opname]
    for load, constant, compare, jump in zip(whole, whole[1:], whole[2:], whole[3:], strict=False):
        text = texts.get(next((name for _, use, name in uses_in([load]) if use == "LOAD"), ""))
        is_test = type(constant.argval) is str and compare.argrepr in ("==", "!=") and "_IF_" in jump.opname
        if text is None or not is_test or constant.opname != "LOAD_CONST":
            continue
        is_true = (text == constant.argval) == (compare.argrepr == "==")
        to = jump.argval if jump.argval > jump.offset else loop_at(code, jump.argval)[-1].offset + 1
        branch = (jump.offset + 1, to)
        others = [one for one in jumps if not jump.offset <= one.offset < to]
        if is_true == jump.opname.endswith("_TRUE"):  # it jumps
            if not any(branch[0] <= one.argval < to for one in others):
                yield branch
            continue
        has_else = between(code, *branch)[-1].opname.startswith((*RETURNS, "JUMP"))
        if has_else and not any(one.argval == to and one is not jump for one in jumps):
            yield to, _end_of_both(code, jump.offset, to)


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
