"""What a script's loop does with variables, read from its code: whether one turn leaves a value to the
next, or each turn sets it anew.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterator, Sequence
from dis import Instruction
from functools import cache
from types import CodeType, FrameType

import numpy as np
import torch

from pilot.train.script.branches import from_some_turn_on, tests_in
from pilot.train.script.bytecode import between, instructions, running_at
from pilot.train.script.objects import attribute_of
from pilot.train.script.statements import (
    Statement,
    loop_at,
    may_pass_by,
    path_at,
    read_and_then_set,
    read_before_set,
    read_by_functions_in,
    statements_in,
    uses_in,
)

NUMBERS = (int, float, np.number, np.ndarray, torch.Tensor)
"""What batches may count in, or add to."""
SESSION = "pilot.train.session"
_TAKES = {"pop", "popleft", "popitem"}


@cache
def heads(code: CodeType, at: int) -> list[int]:
    """Where the loops around the instruction ``at`` begin, from the outermost one on."""
    loops = (one for one in instructions(code) if "JUMP_BACKWARD" in one.opname and one.argval <= at <= one.offset)
    return sorted({one.argval for one in loops})


def inner_loop(frames: Sequence[FrameType], head: int) -> tuple[FrameType, int] | None:
    """The first loop in the one that begins at ``head`` of the first function, in that function or one that it calls
    (directly, or through others); but for one over texts (``for phase in ("train", "val"):``), if there is another.
    """
    inner = [
        (frame, one)
        for number, frame in enumerate(frames)
        for one in heads(frame.f_code, running_at(frame))
        if number or one > head
    ]
    return next((one for one in inner if not _is_over_texts(*one)), inner[0] if inner else None)


def _is_over_texts(frame: FrameType, head: int) -> bool:
    first = between(frame.f_code, head, len(frame.f_code.co_code))[:2]
    return any(use == "STORE" and type(frame.f_locals.get(name)) is str for _, use, name in uses_in(first))


@cache
def read_first(code: CodeType, head: int) -> tuple[str, ...]:
    """The variables that the loop which begins at ``head`` may read before it sets them."""
    loop = loop_at(code, head)
    uses = [[(use, name) for _, use, name in uses_in([one])] for one in loop]
    found = read_before_set(code, loop, uses)
    return tuple(dict.fromkeys(name for _, _, name in uses_in(loop) if name in found))


def handed_on(frame: FrameType, head: int) -> Iterator[tuple[str, object]]:
    """What each turn of this loop may leave to the next one: the variables, and attributes of objects in them, that it
    reads before it sets them, and sets; with their values. Not the next turn's batch, which it has asked for.
    """
    for variable, *names in _read_and_set(frame.f_code, head):
        if not names and _is_asked_for(frame.f_code, head, variable):
            continue
        yield ".".join([variable, *names]), value_of(frame, variable, *names)


@cache
def _is_asked_for(code: CodeType, head: int, variable: str) -> bool:
    """Whether the loop sets this variable only to what ``next``, or the ``next`` of a script's object, returns."""
    setting = [one for one in statements_in(loop_at(code, head)) if variable in one.sets]
    return all(_asks(one) and variable not in one.reads for one in setting)


def _asks(statement: Statement) -> bool:
    return any(path.rpartition(".")[2] == "next" for path in statement.reads)


def handed_on_by(code: CodeType) -> list[str]:
    """The attributes of a function's first argument that it reads before it sets them, and sets."""
    return _of_first_argument(code, _read_and_set(code, None))


@cache
def replaced_by(code: CodeType) -> list[str]:
    """Those of them that it reads and then sets in the same call, and not only if there is none (``if self.noise is
    None:``). (Others one call may set and another one read.)
    """
    whole = instructions(code)
    every = [paths_used(whole, number) for number in range(len(whole))]
    stored = [(whole[at].offset, path) for at, uses in enumerate(every) for use, path in uses if use == "STORE"]
    tests = [
        (path, one) for one, uses in zip(whole[1:], every, strict=False) if "NOT_NONE" in one.opname for _, path in uses
    ]
    always = {
        path
        for where, path in stored
        if not any(path == tested and jump.offset < where < jump.argval for tested, jump in tests)
    }
    return _of_first_argument(code, always & {*read_and_then_set(code, whole, every)})


def _of_first_argument(code: CodeType, paths: Collection[tuple[str, ...]]) -> list[str]:
    return [name for *owner, name in paths if owner == [*code.co_varnames[:1]]]


@cache
def _read_and_set(code: CodeType, head: int | None) -> list[tuple[str, ...]]:
    """In the loop that begins at ``head``, or in all of it."""
    loop = instructions(code) if head is None else loop_at(code, head)
    every = [paths_used(loop, number) for number in range(len(loop))]
    are_set = {path for uses in every for use, path in uses if use == "STORE"}
    return sorted(are_set & read_before_set(code, loop, every))


def paths_used(code: Sequence[Instruction], number: int) -> list[tuple[str, tuple[str, ...]]]:
    """LOAD or STORE, and the variable with the attributes from there."""
    one = code[number]
    if one.opname in ("LOAD_ATTR", "STORE_ATTR") and (path := path_at(code, number)):
        return [(one.opname[: -len("_ATTR")], tuple(path))]
    return [(use, (name,)) for _, use, name in uses_in([one])]


@cache
def popped(code: CodeType, head: int) -> frozenset[str]:
    """The variables, and attributes of objects in them, whose ``pop`` the loop which begins at ``head`` calls."""
    read = (path.split(".") for one in statements_in(loop_at(code, head)) for path in one.reads)
    return frozenset(".".join(path[:-1]) for path in read if path[-1] in _TAKES)


@cache
def statements_of(code: CodeType, head: int) -> list[Statement]:
    """Those of the loop that begins at ``head``."""
    return statements_in(loop_at(code, head))


def running_statement(frame: FrameType) -> Statement:
    """The statement that this function runs."""
    code, at = frame.f_code, running_at(frame)
    return next(one for one in statements_between(code, 0, len(code.co_code)) if at <= one.end)


@cache
def statements_between(code: CodeType, begin: int, end: int) -> list[Statement]:
    """Those from the instruction at ``begin`` on, and before ``end``."""
    return statements_in(between(code, begin, end))


@cache
def behind_loss(code: CodeType, head: int, call: int | None, steering: frozenset[int] = frozenset()) -> frozenset[str]:
    """The variables from which a turn of this loop computes what it calls ``backward`` of, what it gives to the
    function that it calls at the instruction ``call``, which may do so, and what the statements use that begin at
    ``steering``; also what the tests use that decide whether it does so.
    """
    statements = statements_of(code, head)
    found = set[str]()
    for one in statements:
        is_call = call is not None and one.begin <= call <= one.end
        if is_call or "backward" in one.attributes or one.begin in steering:
            found |= one.reads - one.adds_to
            found |= _tested_for(code, head, one.begin)
    more = found
    while more:
        more = {name for one in statements if one.sets & more for name in one.reads} - found
        found |= more
    return frozenset(found)


def _tested_for(code: CodeType, head: int, at: int) -> set[str]:
    """What the tests in the loop that begins at ``head`` read which decide whether the instruction ``at`` runs."""
    tests = (test for test, part in tests_in(code) if part and part[0].offset <= at <= part[-1].offset)
    return {name for test in tests for one in test if one.begin > head for name in one.reads}


def read_to_set(code: CodeType, begin: int, end: int, name: str) -> frozenset[str] | None:
    """The attributes that statements between two instructions read which set this variable; None if there are none."""
    setting = _setting(code, begin, end, name)
    return frozenset(attribute for one in setting for attribute in one.attributes) if setting else None


def paths_to_set(code: CodeType, begin: int, end: int, name: str) -> frozenset[str]:
    """Variables, and attributes of objects in them (``self.rate``), that those of them read which set nothing else."""
    return frozenset(path for one in _setting(code, begin, end, name) if len(one.sets) == 1 for path in one.reads)


@cache
def _setting(code: CodeType, begin: int, end: int, name: str) -> list[Statement]:
    return [one for one in statements_between(code, begin, end) if name in one.sets]


def left_by(
    frame: FrameType, begin: int, end: int, places: Collection[int], fills: Callable[[object], bool]
) -> set[str]:
    """What the statements with these instructions, and those that go on with their results, set from ``begin`` to
    ``end``: variables, and attributes of objects in them; and what they store items in, or else read, if ``fills`` says
    that it may be added to.
    """
    statements = statements_in(between(frame.f_code, begin, end))
    reads = [one.reads | read_by_functions_in(between(frame.f_code, one.begin, one.end + 1)) for one in statements]
    found = set[str]()
    while True:
        more = set[str]()
        for one, read in zip(statements, reads, strict=True):
            if read & found or any(one.begin <= place <= one.end for place in places):
                may_be = one.stores_in or one.reads
                more |= one.sets or {name for name in may_be if fills(value_of(frame, *name.split(".")))}
        if more <= found:
            return found
        found |= more


@cache
def set_anew(code: CodeType, head: int) -> frozenset[str]:
    """The variables that each turn of this loop sets before it reads them, and that functions in it do not read; nor
    what follows the loop, unless each turn sets them.
    """
    others = {*code.co_cellvars, *code.co_freevars, *read_by_functions_in(instructions(code))}
    return _set_first(code, head) - others - kept_for_after(code, head)


@cache
def set_from_some_turn_on(code: CodeType, head: int) -> frozenset[str]:
    """The variables that this loop sets only so (``if epoch >= 3: scale = 0.5``), and does not read before."""
    loop = loop_at(code, head)
    where = from_some_turn_on(code, head, loop[-1].offset) if loop else frozenset[int]()
    first: dict[str, bool] = {}
    others = {*code.co_cellvars, *code.co_freevars}
    for at, use, name in uses_in(loop):
        is_such = use == "STORE" and at in where
        first.setdefault(name, is_such)
        if use == "STORE" and not is_such:
            others.add(name)
    return frozenset(name for name, is_set in first.items() if is_set) - others


@cache
def kept_for_after(code: CodeType, head: int) -> frozenset[str]:
    """The variables that only some turns of this loop set (``if acc > best: best_weights = ...``), and that what
    follows it reads. An inner loop has a turn, and begins with the same in each (``if i % 100 == 0``); what
    ``session.step`` returns is no such condition.
    """
    loop = loop_at(code, head)
    after = [one for one in instructions(code) if loop and one.offset > loop[-1].offset]
    read = read_before_set(code, after, [[(use, name) for _, use, name in uses_in([one])] for one in after])
    stored = [(where, name) for where, use, name in uses_in(loop) if use == "STORE"]
    places = {name: {where for where, one in stored if one == name} for _, name in stored if name in read}
    inner = [one.offset for one in loop if one.opname == "FOR_ITER" and one.offset != head]
    statements = statements_in(loop)
    setting = [one for one in statements if not any(one.begin <= where <= one.end for where in inner)]
    changed = {name for one in setting for name in one.sets}

    @cache
    def varies(jump: Instruction) -> bool:
        begin = next(one.begin for one in statements if jump.offset <= one.end)
        test = {path for one in statements_in(between(code, begin, jump.offset)) for path in one.reads}
        names = {path.rpartition(".")[2] for path in test if "." in path}
        is_of_turn = not test.isdisjoint(changed) or not names.isdisjoint(("steps", "samples"))
        return "_IF_" in jump.opname and is_of_turn and "step" not in names

    return frozenset(name for name, where in places.items() if may_pass_by(code, loop, where, varies))


@cache
def _set_first(code: CodeType, head: int) -> frozenset[str]:
    """The same, also those that functions in it read."""
    stored = {name for _, use, name in uses_in(loop_at(code, head)) if use == "STORE"}
    return frozenset(stored.difference(read_first(code, head)))


@cache
def may_be_kept(code: CodeType, head: int, inner: int) -> frozenset[str]:
    """The variables that some turns of the loop that begins at ``head`` set for others, and that it does not set before
    the loop in it, which begins at ``inner``: by a first batch (``if i == 0``), or at its end. If both are one loop, of
    a function that each epoch calls: that the function does not set before it.
    """
    called = {name for one in statements_between(code, 0, head) for name in one.sets} if head == inner else set()
    of_inner = {name for _, _, name in uses_in(loop_at(code, inner))}
    anew = _set_first(code, head) | _set_first(code, inner) & of_inner
    read, are_set = _around(code, head, inner, "LOAD"), _around(code, head, inner, "STORE")
    return frozenset((read[0] | read[1] | read[2]) & (are_set[1] | are_set[2]) - are_set[0] - anew - called)


@cache
def needed_from_before(code: CodeType, head: int, inner: int) -> frozenset[str]:
    """The variables that only some turns of the loop that begins at ``head`` set, before the loop in it or the call
    which is at ``inner``, under a single condition on what the turn is (``if epoch % 2 == 0``); and which each turn
    reads.
    """
    loop = loop_at(code, head)
    part = [one for one in loop if one.offset < inner]
    stores = [[("STORE", name) for _, use, name in uses_in([one]) if use == "STORE"] for one in part]
    names = {name for uses in stores for _, name in uses} - {
        name for one in loop if one.offset >= inner for _, use, name in uses_in([one]) if use == "STORE"
    }
    some = names & read_before_set(code, part, stores, at_end=names)
    return frozenset(name for name in some if _is_set_once(part, loop, name) and _is_read_in_each_turn(loop, name))


def is_always_read(code: CodeType, head: int, name: str) -> bool:
    """Whether each turn of the loop that begins at ``head`` reads this variable."""
    return _is_read_in_each_turn(loop_at(code, head), name)


def _is_set_once(part: Sequence[Instruction], loop: Sequence[Instruction], name: str) -> bool:
    """Under one condition only, that reads something which the loop sets."""
    places = [where for where, use, one in uses_in(part) if use == "STORE" and one == name]
    tests = {_tests_around(part, where)[:1] for where in places}
    are_set = {one for _, use, one in uses_in(loop) if use == "STORE"}
    test = next(iter(tests), ())
    if len(tests) != 1 or not test:
        return False
    statement = next(one for one in statements_in(part) if test[0].offset <= one.end)
    read = uses_in([one for one in part if statement.begin <= one.offset <= test[0].offset])
    return any(use == "LOAD" and one in are_set for _, use, one in read)


def _tests_around(code: Sequence[Instruction], where: int) -> tuple[Instruction, ...]:
    """The jumps over this instruction that tests lead to, from the outermost one on."""
    return tuple(one for one in code if "_IF_" in one.opname and one.offset < where < one.argval)


def _is_read_in_each_turn(loop: Sequence[Instruction], name: str) -> bool:
    """Also by a function that is made there."""
    jumps = [one for one in loop if "JUMP" in one.opname]
    places = [where for where, use, one in uses_in(loop) if use == "LOAD" and one == name]
    places += [one.offset for one in loop if one.opname == "LOAD_CLOSURE" and one.argval == name]
    return any(not any(one.offset < where < one.argval for one in jumps) for where in places)


@cache
def left_at_end(code: CodeType, head: int, inner: int) -> frozenset[str]:
    """Those of them that are set after that loop only, and read before: the next turn reads them."""
    read, are_set = _around(code, head, inner, "LOAD"), _around(code, head, inner, "STORE")
    return frozenset((read[0] | read[1]) & are_set[2] - are_set[0] - are_set[1])


def _around(code: CodeType, head: int, inner: int, kind: str) -> tuple[set[str], set[str], set[str]]:
    """The variables that the loop which begins at ``head`` reads or sets before, in, and after the one in it."""
    end = max((one.offset for one in loop_at(code, inner)), default=inner)
    uses = [(where, name) for where, use, name in uses_in(loop_at(code, head)) if use == kind]
    before = {name for where, name in uses if where < inner}
    return (
        before,
        {name for where, name in uses if inner <= where <= end},
        {name for where, name in uses if where > end},
    )


def yields_each_turn(frame: FrameType) -> bool:
    """Whether it is a generator that yields in the loop in which it is."""
    code = frame.f_code
    inner = heads(code, running_at(frame))[-1:] if code.co_flags & inspect.CO_GENERATOR else []
    return any(one.opname == "YIELD_VALUE" for head in inner for one in loop_at(code, head))


def value_of(frame: FrameType, variable: str, *attributes: str) -> object:
    """Of a variable, or of an attribute of its."""
    value = frame.f_locals.get(variable, frame.f_globals.get(variable))
    for name in attributes:
        value = attribute_of(value, name)
    return value


def is_session(frame: FrameType, path: Sequence[str]) -> bool:
    """Whether a variable, or an attribute of its, is one."""
    return bool(path) and type(value_of(frame, *path)).__module__ == SESSION


def uses_session(frame: FrameType, statement: Statement, names: Collection[str]) -> bool:
    """Whether it reads one of these of a session: ``session.evaluate``."""
    paths = [path.split(".") for path in statement.reads]
    return any(path[-1] in names and is_session(frame, path[:-1]) for path in paths)
