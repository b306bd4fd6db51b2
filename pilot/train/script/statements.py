"""The statements of a script's functions: which variables and attributes of objects these read and set."""

from __future__ import annotations

import dis
import re
from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import pairwise
from types import CodeType, EllipsisType
from typing import TypeVar

from pilot.train.script.bytecode import between, exceptions, instructions

_OF_VARIABLES = re.compile(r"(LOAD|STORE)_(FAST|NAME|GLOBAL|DEREF)")
_AT_ONCE = {"<listcomp>", "<dictcomp>", "<setcomp>", "<genexpr>"}
"""Functions that run where they are made. From Python 3.12 on, only generator expressions are functions."""
_IN_PLACE = {"+=", "-="}
_AUGMENTED = {"+=", "-=", "*=", "/=", "//=", "%=", "**=", "@=", "&=", "|=", "^=", "<<=", ">>="}
_ARITHMETIC = {f"{name}_" for name in ("add", "sub", "mul", "div", "pow", "neg", "lerp", "clamp", "addcmul", "roll")}
ADDS = {"append", "extend", "update", "add", "partial_fit", "learn_one", "tell"}
SIZES = {"len", "size", "shape", "numel", "ndim"}
"""What says how many numbers a tensor has, and not which."""
SUMS = {"sum", "count_nonzero"}
_GETS = {"get", "setdefault", "pop"}
_REFILLS = {"sort", "clear", "copy_", "copyto", "randperm"}
RETURNS = ("RETURN_VALUE", "RETURN_CONST")
_IS_SURE = re.compile("JUMP(_FORWARD|_BACKWARD|_BACKWARD_NO_INTERRUPT)?")
Use = tuple[int, str, str]
"""Where, LOAD or STORE, and the variable."""
Range = tuple[int, int]
"""The first instruction, and the one after the last."""
Name = TypeVar("Name", bound=Hashable)
NamedUse = tuple[str, Name]
"""LOAD or STORE, and what."""


def loop_at(code: CodeType, head: int) -> list[dis.Instruction]:
    """The instructions of the loop that begins at ``head``; none if it runs elsewhere
    (``list(map(train, session.epochs(n)))``).
    """
    ends = [one.offset for one in instructions(code) if "JUMP_BACKWARD" in one.opname and one.argval == head]
    return [one for one in instructions(code) if head <= one.offset <= max(ends, default=-1)]


def uses_in(code: Sequence[dis.Instruction]) -> Iterator[Use]:
    """Of variables, in their order."""
    for one in code:
        if comprehension := comprehension_in(one):
            yield from ((one.offset, "LOAD", name) for name in _reads_of(comprehension))
        if found := _OF_VARIABLES.match(one.opname):
            yield one.offset, found[1], one.argval


def comprehension_in(one: dis.Instruction) -> CodeType | None:
    """Which this instruction loads, to run it."""
    found = one.argval if one.opname == "LOAD_CONST" else None
    return found if isinstance(found, CodeType) and found.co_name in _AT_ONCE else None


def read_by_functions_in(code: Sequence[dis.Instruction]) -> set[str]:
    """The variables that functions read which are made there."""
    return {name for one in code if isinstance(one.argval, CodeType) for name in _reads_of(one.argval)}


@cache
def _reads_of(function: CodeType) -> tuple[str, ...]:
    """The variables around it that it reads, or that functions in it read; also of a comprehension."""
    own, code = {*function.co_varnames, *function.co_cellvars}, instructions(function)
    names = dict.fromkeys(name for _, use, name in uses_in(code) if use == "LOAD")
    return tuple(name for name in (names | dict.fromkeys(read_by_functions_in(code))) if name not in own)


def path_at(code: Sequence[dis.Instruction], number: int) -> list[str]:
    """Of the attribute of this instruction, from a variable on; empty: it belongs to something else."""
    names = [code[number].argval]
    for one in reversed(code[:number]):
        if one.opname != "LOAD_ATTR":
            variables = [name for _, use, name in uses_in([one]) if use == "LOAD"]
            return [*variables[-1:], *names] if variables else []
        names.insert(0, one.argval)
    return []


def read_before_set(
    code: CodeType,
    part: Sequence[dis.Instruction],
    uses: Sequence[Sequence[NamedUse[Name]]],
    at_end: Collection[Name] = (),
) -> set[Name]:
    """What may be read before it is set, on some way through this part of ``code`` (a turn of its loop, or all of it).

    Inner loops have turns. An exception may come before anything in its ``try`` was done.

    Parameters
    ----------
    uses : by each instruction of the part, in their order
    at_end : what is read after the part's last instruction
    """
    number_at = {one.offset: number for number, one in enumerate(part)}
    follows = [[number_at[to] for to in _next(code, part, number) if to in number_at] for number in range(len(part))]
    before: list[set[Name]] = [set() for _ in part]
    changes = True
    while changes:
        changes = False
        for number in reversed(range(len(part))):
            found = set(at_end if number == len(part) - 1 else ())
            found.update(*(before[one] for one in follows[number] if one))  # at 0 the next turn begins
            for use, name in reversed(uses[number]):
                found = found - {name} if use == "STORE" else found | {name}
            changes |= found != before[number]
            before[number] = found
    return before[0] if before else set()


def read_and_then_set(
    code: CodeType, part: Sequence[dis.Instruction], uses: Sequence[Sequence[NamedUse[Name]]]
) -> set[Name]:
    """What may be read before it is set, on some way on which it is set later."""
    number_at = {one.offset: number for number, one in enumerate(part)}
    follows = [[number_at[to] for to in _next(code, part, number) if to in number_at] for number in range(len(part))]
    later = [{name for use, name in its if use == "STORE"} for its in uses]
    changes = True
    while changes:
        changes = False
        for number in reversed(range(len(part))):
            found = later[number].union(*(later[one] for one in follows[number] if one))  # at 0 the next turn begins
            changes |= found != later[number]
            later[number] = found
    its = [[(use, name) for use, name in uses[number] if name in later[number]] for number in range(len(part))]
    return read_before_set(code, part, its)


def may_pass_by(
    code: CodeType, part: Sequence[dis.Instruction], places: Collection[int], varies: Callable[[dis.Instruction], bool]
) -> bool:
    """Whether a turn of a loop, which this part of ``code`` is, may end without any of the instructions at ``places``.

    ``varies``: whether the test of this jump may have another outcome in each turn, or an inner loop have no turn.
    Others (of an option) have the outcome with which a turn gets to such a place, if there is one.
    """
    number_at = {one.offset: number for number, one in enumerate(part)}
    follows = [[number_at.get(to, -1) for to in _next(code, part, number)] for number in range(len(part))]
    passes = [False] * len(part)
    changes = True
    while changes:
        changes = False
        for number, one in reversed([*enumerate(part)]):
            ways = [to == 0 or (to > 0 and passes[to]) for to in follows[number]]  # at 0 the next turn begins
            is_test = "_IF_" in one.opname or (number and one.opname == "FOR_ITER")
            is_fixed = is_test and not varies(one)
            found = one.offset not in places and bool(ways) and (all(ways) if is_fixed else any(ways))
            changes |= found != passes[number]
            passes[number] = found
    return bool(passes) and passes[0]


def _next(code: CodeType, part: Sequence[dis.Instruction], number: int) -> list[int]:
    """Where it goes on after this instruction: the offsets."""
    one = part[number]
    if one.opname.startswith((*RETURNS, "RAISE", "RERAISE")):
        return []
    then = [part[number + 1].offset] if number + 1 < len(part) else []
    if "JUMP" in one.opname or one.opname == "SEND":
        to = _by_offset(code).get(one.argval) if part[0].offset <= one.argval <= part[-1].offset else None
        # An inner loop, after a turn.
        is_over = to is not None and to.offset != part[0].offset and to.opname == "FOR_ITER"
        then = [to.argval if is_over and to else one.argval, *(then if _IS_SURE.fullmatch(one.opname) is None else [])]
    return [*then, *_handlers(code).get(one.offset, ())]


@cache
def _by_offset(code: CodeType) -> dict[int, dis.Instruction]:
    return {one.offset: one for one in instructions(code)}


@cache
def _handlers(code: CodeType) -> dict[int, list[int]]:
    """Where it goes on after an exception, by the instruction with which a ``try`` begins; not after ``with``."""
    found: dict[int, list[int]] = {}
    for (begin, _), target in tries(code):
        found.setdefault(begin, []).append(target)
    return found


@cache
def tries(code: CodeType) -> list[tuple[Range, int]]:
    """What runs in a ``try``, and where it goes on after an exception; not of ``with``."""
    ends = {one.offset for one, other in pairwise(instructions(code)) if other.opname == "WITH_EXCEPT_START"}
    return [((one.start, one.end), one.target) for one in exceptions(code) if one.target not in ends]


@dataclass
class Statement:
    """From instruction ``begin`` to ``end``: the names of the variables, and of attributes of objects in them
    (``self.rate``), that it reads and sets, and in which it stores items, if it ``stores`` some; of all ``attributes``
    that it reads; the variables that it only adds to (``total += ...``); its ``texts``. (What an ``if`` reads counts to
    the statement after it.)
    """

    begin: int
    end: int = 0
    reads: set[str] = field(default_factory=set)
    attributes: set[str] = field(default_factory=set)
    sets: set[str] = field(default_factory=set)
    stores_in: set[str] = field(default_factory=set)
    stores: bool = False
    adds_to: set[str] = field(default_factory=set)
    texts: set[str] = field(default_factory=set)


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
            if use == "STORE" and number and str(code[number - 1].argrepr) in _IN_PLACE:
                statement.adds_to.add(name)
        if comprehension := comprehension_in(one):
            within = statements_in(instructions(comprehension))
            statement.attributes.update(*(each.attributes for each in within))
            around = _reads_of(comprehension)
            paths = (path for each in within for path in each.reads)
            statement.reads.update(path for path in paths if path.partition(".")[0] in around)
        if one.opname == "LOAD_CONST" and isinstance(one.argval, str):
            statement.texts.add(one.argval)
        if one.opname == "LOAD_ATTR":
            statement.attributes.add(one.argval)
        if one.opname in ("LOAD_ATTR", "STORE_ATTR") and (path := path_at(code, number)):
            (statement.sets if one.opname == "STORE_ATTR" else statement.reads).add(".".join(path))
        statement.stores |= one.opname == "STORE_SUBSCR"
        if one.opname == "STORE_SUBSCR" and (holder := read_at(code, number - 2)):  # before a simple key
            statement.stores_in.add(holder)
        is_over = one.opname == "POP_TOP" or one.opname.startswith("STORE_")
    return found


@dataclass(frozen=True)
class Item:
    """An item, or a part of one, of what a variable holds, or an attribute of an object in one (``holder``): what reads
    it at the instruction ``where``, or stores or changes it. ``key``: if that is a text.
    """

    where: int
    holder: str
    key: str
    is_changed: bool


@cache
def items_in(code: CodeType) -> tuple[Item, ...]:
    """Those that a function uses: ``state["mean"]``, ``state.get("mean")``, ``state["table"][i] = one``."""
    whole = instructions(code)
    its = (_item_at(whole, number) for number in range(1, len(whole) - 1))
    found = [one for one in its if one is not None]
    for at in whole:
        if comprehension := comprehension_in(at):
            found += [replace(one, where=at.offset) for one in items_in(comprehension)]
    return tuple(found)


def _item_at(code: Sequence[dis.Instruction], number: int) -> Item | None:
    one, then = code[number], code[number + 1]
    if one.opname == "LOAD_ATTR" and one.argval in _GETS and (holder := read_at(code, number - 1)):
        is_text = then.opname == "LOAD_CONST" and isinstance(then.argval, str)
        return Item(one.offset, holder, then.argval, is_changed=False) if is_text else None
    if one.opname not in ("BINARY_SUBSCR", "STORE_SUBSCR"):
        return None
    key = begin = number
    while begin >= 0 and code[begin].opname in ("BINARY_SUBSCR", "STORE_SUBSCR"):
        key = _before_copies(code, begin) - 1
        begin = begin_of(code, key) - 1
    is_text = begin + 1 == key and code[key].opname == "LOAD_CONST" and isinstance(code[key].argval, str)
    changes = then.opname == "LOAD_ATTR" and (then.argval in ADDS or is_in_place(then.argval))
    text = code[key].argval if is_text else ""
    return Item(one.offset, read_at(code, max(begin, 0)), text, one.opname == "STORE_SUBSCR" or changes)


def _before_copies(code: Sequence[dis.Instruction], number: int) -> int:
    """Where the key ends with which this instruction reads or stores: ``+=`` copies it before."""
    if code[number - 1].opname == "COPY":
        return number - 2
    if code[number - 1].opname == "SWAP":
        return next(
            (at - 1 for at in range(number, 0, -1) if {one.opname for one in code[at - 1 : at + 1]} == {"COPY"}), 1
        )
    return number


def begin_of(code: Sequence[dis.Instruction], number: int) -> int:
    """Where the expression begins whose value the instruction ``number`` leaves on the stack; 0: it is not known."""
    depth = 0
    for begin in range(number, 0, -1):
        depth += dis.stack_effect(code[begin].opcode, code[begin].arg)
        if depth == 1:
            return begin
    return 0


def is_in_place(method: str) -> bool:
    """Whether a tensor's method of this name changes it."""
    return method.endswith("_") and not method.endswith("__")


def added_to(statement: Statement) -> set[str]:
    """What it adds something to by a method: ``logs.update(loss=...)``."""
    split = (path.rpartition(".") for path in statement.reads)
    return {owner for owner, _, method in split if method in ADDS}


def changed_in_place(statement: Statement) -> set[str]:
    """What it changes by a tensor's method: ``average.lerp_(...)``."""
    split = (path.rpartition(".") for path in statement.reads)
    return {owner for owner, _, method in split if is_in_place(method)} - {""}


def counts_some(statement: Statement, code: CodeType) -> bool:
    """Whether it counts numbers for which something is true: ``(y != pad).sum()``."""
    part = between(code, statement.begin, statement.end + 1)
    return not SUMS.isdisjoint(statement.attributes) and any(one.opname == "COMPARE_OP" for one in part)


def augmented(code: Sequence[dis.Instruction]) -> Iterator[str]:
    """The attributes of objects in variables (``self.stage``) that these instructions change by ``+=`` or the like."""
    for number, (one, then) in enumerate(pairwise(code)):
        if one.opname == "COPY" and then.opname == "LOAD_ATTR" and number and (holder := read_at(code, number - 1)):
            yield f"{holder}.{then.argval}"


def without_test(code: Sequence[dis.Instruction]) -> Sequence[dis.Instruction]:
    """The instructions of a statement without those of an ``if`` before it."""
    ends = (number for number, one in enumerate(code, 1) if "_IF_" in one.opname and not _is_within(one.argval, code))
    return code[max(ends, default=0) :]


def _is_within(offset: int, code: Sequence[dis.Instruction]) -> bool:
    return code[0].offset <= offset <= code[-1].offset


def changed_from_itself(code: Sequence[dis.Instruction]) -> set[str]:
    """The attributes of objects in variables (``data.scale``) that a statement with these instructions changes from
    what they are: ``data.scale *= 0.9``, ``data.x.mul_(0.9)``, ``data.x = 0.9 * data.x``, ``data.x[0] += 1``. Of an
    object in a list in one: ``data.parts[].scale``.
    """
    statement = statements_in(code)[0]
    if _REFILLS & (statement.attributes | statement.reads):
        return set()
    read = {path for path in statement.reads if "." in path}
    found = {*augmented(code), *(statement.sets & read)}
    if "setattr" in statement.reads:
        found |= {path for path in read if path.rpartition(".")[2] in statement.texts}
    holders = {path.rpartition(".")[0] for path in read if path.rpartition(".")[2] in _ARITHMETIC}
    is_augmented = any(one.argrepr in _AUGMENTED for one in code)
    if (is_augmented and code[-1].opname == "STORE_SUBSCR") or (_ARITHMETIC & statement.attributes and not holders):
        holders = {path for path in read if path.rpartition(".")[2] not in _ARITHMETIC}
    if is_augmented and code[-1].opname == "STORE_ATTR" and not found:
        found = {f"{path}[].{code[-1].argval}" for path in read}
    return found | {path for path in holders if "." in path}


@cache
def refilled(code: CodeType, name: str) -> bool:
    """Whether a function may give a list or array of this name other items, or order them, whatever there was before:
    ``self.items[:] = ...``, ``self.items[i] = one``, ``self.items.sort()``. (Not ``self.items[i], self.items[j] =
    self.items[j], self.items[i]``.)
    """
    statements = statements_in(instructions(code))
    return any(refills(between(code, one.begin, one.end + 1), one, name) for one in statements)


def refills(part: Sequence[dis.Instruction], statement: Statement, name: str) -> bool:
    """Whether a statement, which these instructions are, does so."""
    read = statement.attributes | statement.reads
    stores = part[-1].opname.startswith("STORE_S")
    return name in read and bool(_REFILLS & read or (stores and _fills(part, statement, name)))


def _fills(part: Sequence[dis.Instruction], statement: Statement, name: str) -> bool:
    """Whether a statement that stores in a list or array of this name stores in many places, or without reading it."""
    if any(one.opname == "BUILD_SLICE" or isinstance(one.argval, slice | EllipsisType) for one in part):
        return True
    read = [number for number, one in enumerate(part) if one.opname == "LOAD_ATTR" and one.argval == name]
    holders = {path.rpartition(".")[2] for path in statement.stores_in}
    return name in holders and len(read) == 1 and read[0] > 1  # the second half of a swap begins with it


def without_owners(paths: Collection[str]) -> list[str]:
    """Without the objects of which only attributes are among them."""
    return [path for path in paths if not any(other.startswith(f"{path}.") for other in paths)]


def read_at(code: Sequence[dis.Instruction], number: int) -> str:
    """The variable, or attribute of an object in one, that this instruction reads; empty: it does something else."""
    if code[number].opname == "LOAD_ATTR":
        return ".".join(path_at(code, number))
    return next((name for _, use, name in uses_in([code[number]]) if use == "LOAD"), "")
