"""The script's code that runs at an epoch's beginning, until its inner loop: in its running functions, and in those
that they call and that have returned; with what their variables are, or may be.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from dis import Instruction
from functools import cache, partial
from itertools import chain, islice
from types import CodeType, FrameType, FunctionType, MappingProxyType, MethodType
from typing import Any, NamedTuple

from pilot.train.script import attribute_code, loop_code, refusal
from pilot.train.script.branches import under_equality
from pilot.train.script.bytecode import between, running_at
from pilot.train.script.objects import is_of_the_script
from pilot.train.script.statements import Statement, changed_from_itself, refills, statements_in, without_test

_DEPTH = 3
"""Of calls, and of variables that are set from others."""
_MOST = 100
"""Items of a list (of callbacks), and functions, that are looked at."""
_FEW = 10
"""Functions that are called under a condition."""
_STORES = ("STORE_ATTR", "STORE_SUBSCR", "DELETE_ATTR", "DELETE_SUBSCR")
_CHANGES = re.compile(
    r"register_.*|remove|add_module|setattr|append|extend|insert|pop|clear|reverse|sort|shuffle|.*[^_]_"
)
"""Names of functions that may change an object."""


class _Call(NamedTuple):
    """Of a function, with its first arguments, and others by name."""

    function: Any  # a FunctionType would be bound for mypy
    first: tuple[object, ...] = ()
    named: Mapping[str, object] = MappingProxyType({})


@dataclass(frozen=True)
class Part:
    """A part of a function.

    Parameters
    ----------
    code : the function's
    begin, end : its first instruction, and the one after its last
    known : what a variable is, or may be, that is not set in it
    is_running : whether the function has not returned
    """

    code: CodeType
    begin: int
    end: int
    known: Callable[[str], Sequence[object]]
    is_running: bool

    def statements(self) -> list[Statement]:
        """In their order."""
        return loop_code.statements_between(self.code, self.begin, self.end)

    def within(self, begin: int, end: int) -> Part:
        """A part of it, as if all of it ran before."""
        before = replace(self, end=max(begin, self.begin))
        return replace(self, begin=begin, end=end, known=lambda name: before.values(name))

    def values(self, path: str, depth: int = _DEPTH) -> list[object]:
        """What a variable, or an attribute of an object in it, may be."""
        name, *attributes = path.split(".")
        found = [*self.known(name), *(self._set_to(name, depth) if depth else ())]
        for attribute in attributes:
            found = [held[attribute] for held in map(_attributes_of, found) if attribute in held]
        return list({id(one): one for one in found}.values())

    def _set_to(self, name: str, depth: int) -> Iterator[object]:
        """What statements read that set a variable without a call, or the items of that."""
        for one in (each for each in self.statements() if name in each.sets):
            names = [each.opname for each in between(self.code, one.begin, one.end + 1)]
            if "FOR_ITER" in names or not any(each.startswith("CALL") for each in names):
                for value in (value for path in one.reads - {name} for value in self.values(path, depth - 1)):
                    yield value
                    yield from _items_of(value)

    def reads(self, wanted: Callable[[object], bool]) -> bool:
        """Whether it reads or sets a variable, or an attribute, of a wanted object."""
        return any(self._uses(one, wanted) for one in self.statements())

    def changes(self, wanted: Callable[[object], bool]) -> bool:
        """Whether a statement may change a wanted object: sets an attribute or an item, or calls such a method."""
        return any(
            wanted(value)
            for one in self.statements()
            for path in _owners(_changed_by(self.code, one))
            for value in self.values(path)
        )

    def _uses(self, statement: Statement, wanted: Callable[[object], bool]) -> bool:
        paths = _owners({*statement.reads, *statement.sets}, whole=True)
        return any(wanted(value) for path in paths for value in self.values(path))

    def changed_from_itself(self) -> Iterator[tuple[object, str]]:
        """Attributes that a statement changes from what they are: the object and the name."""
        for _, its in _by_statement(self.code, self.begin, self.end):
            for owner, _, name in (path.rpartition(".") for path in its):
                values = self.values(owner.removesuffix("[]"))
                items = (item for value in values for item in _items_of(value))
                yield from ((value, name) for value in (items if owner.endswith("[]") else values))

    def made_anew(self, name: str) -> Iterator[object]:
        """Objects whose attribute of this name it sets in any case, before it reads it, or fills with other items."""
        for *owner, attribute in attribute_code.attributes_set(self.code, self.begin, self.end):
            if attribute == name:
                yield from self.values(".".join(owner))
        for part, its in _by_statement(self.code, self.begin, self.end):
            one = statements_in(part)[0]
            if not its and refills(part, one, name):
                owners = (path.rpartition(".")[0] for path in one.reads if name in path.split("."))
                yield from (value for owner in owners if owner for value in self.values(owner))

    def called(self, without: Collection[CodeType], depth: int = _DEPTH) -> Iterator[Part]:
        """The functions that it calls, and those that they call, apart from some."""
        for statement in self.statements() if depth else ():
            read = statement.reads
            paths = [path for path in read if not any(other.startswith(f"{path}.") for other in read)]
            given = [value for path in paths for value in self.values(path)]
            of_items = _methods_of_items(given, statement.attributes)
            for call in chain(of_items, (each for path in paths for each in self._calls(path))):
                code = call.function.__code__
                if code not in without and not refusal.is_of_a_library(code.co_filename):
                    one = Part(code, 0, len(code.co_code), partial(_variable_of, call, given), False)
                    yield one
                    yield from one.called({*without, code}, depth - 1)

    def _calls(self, path: str) -> Iterator[_Call]:
        """If this path is called."""
        owner, _, name = path.rpartition(".")
        yield from _methods(self.values(owner) if owner else (), name)
        for value in self.values(path):
            yield from _calls_of(value)


def _methods(owners: Iterable[object], name: str) -> Iterator[_Call]:
    for one in owners:
        method = inspect.getattr_static(type(one), name, None)
        if isinstance(method, FunctionType):
            yield _Call(_unwrapped(method), (one,))


def _methods_of_items(values: Iterable[object], names: Iterable[str]) -> Iterator[_Call]:
    """If a method of one of these names is called of an item of theirs (``dataset.transforms[0].grow()``)."""
    items = [item for value in values for item in _items_of(value) if is_of_the_script(type(item))]
    return chain.from_iterable(_methods(items, name) for name in names)


def _changed_by(code: CodeType, statement: Statement) -> set[str]:
    """Attributes that it sets, or methods that it calls, by which it may change their objects; if it is not known which
    (``model[1].forward = ...``), of all objects that it reads.
    """
    found = {path for path in statement.reads if "." in path and _CHANGES.fullmatch(path.rpartition(".")[2])}
    found |= {path for path in statement.sets if "." in path} | {f"{path}.[]" for path in statement.stores_in}
    is_other = any(one.opname in _STORES for one in between(code, statement.begin, statement.end + 1))
    is_other |= any(map(_CHANGES.fullmatch, statement.attributes | statement.reads))
    return found or ({f"{path}.?" for path in statement.reads} if is_other else set())


def _owners(paths: Iterable[str], *, whole: bool = False) -> set[str]:
    """The variables and attributes on the way to these; also themselves if ``whole``."""
    every = (path.split(".") for path in paths)
    return {".".join(names[:end]) for names in every for end in range(1, len(names) + whole)}


@cache
def _by_statement(code: CodeType, begin: int, end: int) -> list[tuple[Sequence[Instruction], set[str]]]:
    every = (
        without_test(between(code, one.begin, one.end + 1)) for one in loop_code.statements_between(code, begin, end)
    )
    return [(part, changed_from_itself(part)) for part in every if part]


def beginning(frames: Sequence[FrameType], head: int, *, to_inner_loop: bool = True) -> Iterator[Part]:
    """Of the first function's loop, which begins at ``head``, until the inner loop, which is in it or in a function
    that it calls; or else until where each function is.
    """
    begin, running = head, {frame.f_code for frame in frames}
    for number, frame in enumerate(frames):
        inner = loop_code.heads(frame.f_code, running_at(frame))
        if not number:
            inner = inner[inner.index(head) + 1 :] if head in inner else []
        is_last = bool(inner) and to_inner_loop
        one = Part(frame.f_code, begin, inner[0] if is_last else running_at(frame), partial(_in_frame, frame), True)
        yield one
        yield from islice(one.called(running), _MOST)
        if is_last:
            return
        begin = 0


def changes_under_equality(frames: Sequence[FrameType], head: int, wanted: Callable[[object], bool]) -> bool:
    """Whether what a turn of the first function's loop does before its inner loop uses one of the wanted objects only
    if something equals something else (``if epoch == 3``); or, in a function that it calls, may change it.
    """
    running = {frame.f_code for frame in frames}
    return any(_changes_in_some(part, running, wanted) for part in beginning(frames, head))


def _changes_in_some(part: Part, running: Collection[CodeType], wanted: Callable[[object], bool]) -> bool:
    for branch, otherwise in under_equality(part.code, part.begin, part.end):
        within = part.within(*branch)
        uses = within.reads(wanted) if part.is_running else within.changes(wanted)
        uses = uses or any(one.changes(wanted) for one in islice(within.called({*running, part.code}, 2), _FEW))
        if uses and not part.within(*otherwise).changes(wanted):
            return True
    return False


def _in_frame(frame: FrameType, name: str) -> list[object]:
    """What a variable is in a function."""
    spaces = (space for space in (frame.f_locals, frame.f_globals) if name in space)
    return [space[name] for space in islice(spaces, 1)]


def _variable_of(call: _Call, given: Sequence[object], name: str) -> Sequence[object]:
    """What a variable of a function may be that gets others of these values, too."""
    code = call.function.__code__
    arguments = inspect.getargs(code)
    names = (*arguments.args, *filter(None, (arguments.varargs, arguments.varkw)))
    if name in names:
        bound = {**dict(zip(arguments.args, call.first, strict=False)), **call.named}
        return [bound[name]] if name in bound else given
    if name in code.co_freevars:
        with suppress(ValueError):  # it was not set yet
            return [(call.function.__closure__ or ())[code.co_freevars.index(name)].cell_contents]
    values = call.function.__globals__
    return [values[name]] if name in values and name not in code.co_varnames else []


def _calls_of(value: Any) -> Iterator[_Call]:
    """If this value is called."""
    if isinstance(value, partial):
        for one in _calls_of(value.func):
            yield _Call(one.function, (*one.first, *value.args), {**one.named, **value.keywords})
    elif isinstance(value, FunctionType):
        yield _Call(_unwrapped(value))
    elif isinstance(value, MethodType):
        yield from (_Call(one.function, (value.__self__, *one.first)) for one in _calls_of(value.__func__))
    elif isinstance(its := inspect.getattr_static(type(value), "__call__", None), FunctionType):
        yield _Call(_unwrapped(its), (value,))


def _unwrapped(function: FunctionType) -> FunctionType:
    """Without decorators (``torch.no_grad()``)."""
    inside: Any = inspect.unwrap(function)
    return inside if isinstance(inside, FunctionType) else function


def _attributes_of(value: object) -> dict[str, object]:
    held = getattr(value, "__dict__", None)
    return held if type(held) is dict else {}


def _items_of(value: object) -> list[object]:
    if type(value) is dict:
        return list(islice(value.values(), _MOST))
    return list(islice(value, _MOST)) if isinstance(value, list | tuple) else []
