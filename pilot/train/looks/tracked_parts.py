"""What tracked objects have of others (``session.track("average", Adapter(average))``): a node that joins gets what is
in their states. Of their own numbers see :func:`counted`.

Also of variables around a tracked object's class, which its state is made of.

An attribute counts as being in a state if that has its value, and either by its name, or because ``state_dict`` reads
it; and not if the value may be that of another one. This is asked at each look, in which values may be the same by
chance. Tensors and arrays count if they share their memory with the state's.
"""

from __future__ import annotations

import inspect
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from dis import Instruction
from functools import cache
from itertools import chain, islice
from types import CodeType, FunctionType
from typing import Any

from torch import nn

from pilot.train.looks.marks import ARRAYS, CHANGEABLE, Place, memory_of
from pilot.train.script import attribute_code, loop_code
from pilot.train.script.bytecode import between, instructions
from pilot.train.script.objects import WITH_ITEMS, inner, is_of_the_script
from pilot.train.script.refusal import is_of_a_library
from pilot.train.script.statements import augmented, statements_in, without_test
from pilot.train.state.catch_up import Stateful
from pilot.train.state.module_numbers import same

_DEPTH = 3
"""How far it looks for objects that a tracked one has."""
_MOST = 10_000
"""Of the values in a state."""
_OF_STATES = ("state_dict", "load_state_dict")
_EVERY = {"__dict__", "vars", "getattr", "setattr", "asdict", "__getstate__", "dumps"}
"""With which a state may hold any attribute."""


@dataclass
class TrackedParts:
    """``attributes``, by object; ``variables``, with their values; and ``known``: which lists, dicts, tensors and
    arrays, also by their memory.
    """

    attributes: set[Place] = field(default_factory=set)
    variables: list[tuple[str, Any]] = field(default_factory=list)
    known: set[int] = field(default_factory=set)

    @classmethod
    def of(cls, tracked: Mapping[str, Stateful]) -> TrackedParts:
        """Those of these objects that are no modules, and have others, or are for variables around them."""
        found = cls()
        for one in tracked.values():
            around = (value for value in _around(one).values() if is_of_the_script(type(value)))
            held = list(islice(chain.from_iterable(_held(each, _DEPTH, set()) for each in (one, *around)), _MOST))
            variables = list(_variables_of(one))
            if variables or any(each.owner is not one or each.may_be_shared for each in held):
                state = list(islice(_values(None, one.state_dict()), _MOST))
                found._add(
                    held,
                    {name for each in held for name in _read_for_state(each.owner)} | {*_read_for_state(one)},
                    state,
                )
                found._add_variables(type(one), variables, state)
        return found

    def has_variable(self, name: str, value: Any) -> bool:
        """Whether it is in a state."""
        return any(name == one and value is its for one, its in self.variables)

    def _add_variables(self, kind: type, variables: list[tuple[str, Any]], state: list[tuple[Any, Any]]) -> None:
        for name, value in variables:
            if any(same(its, value) for _, its in state):
                self.variables.append((name, value))
                if isinstance(value, CHANGEABLE):
                    self.known |= _numbers_of(value)
        for function in (getattr(kind, name) for name in _OF_STATES if variables):
            if all(self.has_variable(*each) for each in inspect.getclosurevars(function).nonlocals.items()):
                self.known.add(id(function))

    def _add(self, held: list[_Held], read: set[str], state: list[tuple[Any, Any]]) -> None:
        self.known |= {number for _, value in state if isinstance(value, ARRAYS) for number in _numbers_of(value)}
        for one in held:
            named = [value for key, value in state if key == one.name]
            its = named or [value for _, value in state if one.name in read]
            count = sum(same(value, one.value) for value in its)
            if count and len({other.which for other in held if one.may_be(other)}) <= count:
                self.attributes.add((id(one.owner), one.path))
                if one.may_be_shared:
                    self.known |= _numbers_of(one.value)


def is_saved(one: Stateful, name: str) -> bool:
    """Whether its state may have this attribute."""
    if isinstance(one, nn.Module):
        return name in one.state_dict()
    named = _named_for_states(type(one))
    return name in named or not named.isdisjoint(_EVERY)


def counted(kept: Mapping[str, Stateful], read: Collection[str]) -> Iterator[tuple[int, str, int | float]]:
    """Numbers of objects that their states leave out, and by which their methods, or the script, go (``self.updates +=
    1``, from which the decay of an average follows): whose it is, its name, and it. ``read``: the attributes that the
    script's running functions read.
    """
    for key, one in kept.items():
        if is_of_the_script(type(one)) and not isinstance(one, nn.Module):
            held, (changed, used) = dict(inner(one)), _counted_by(type(one))
            found = [name for name in changed if name in used | set(read) and type(held.get(name)) in (int, float)]
            state = islice(_values(None, one.state_dict()), _MOST) if found else ()
            keys = {its for its, _ in state}
            yield from ((id(one), f"{key}.{name}", held[name]) for name in found if name not in keys)


@cache
def _counted_by(kind: type) -> tuple[tuple[str, ...], frozenset[str]]:
    """Attributes that methods of this class change from what they were, and that those by which its states are made and
    loaded do not name; and those that they read, and not only to change them.
    """
    named = _named_for_states(kind)
    if named & _EVERY:
        return (), frozenset()
    codes = attribute_code.methods(kind)
    others = [one for one in codes if one.co_name not in {*named, "__init__"} and not is_of_a_library(one.co_filename)]
    changed = {name for code in others for name in _changed_by(code)} - named
    return tuple(sorted(changed)), frozenset(name for code in others for name in _used_by(code))


def _named_for_states(kind: type) -> set[str]:
    """What the methods name by which its states are made and loaded, and those that they call."""
    named = set(_OF_STATES)
    while more := {name for one in named for code in _codes_of(kind, one) for name in _names_in(code)} - named:
        named |= more
    return named


def _codes_of(kind: type, name: str) -> Iterator[CodeType]:
    """Of a method, and those of its bases that it calls."""
    for base in kind.__mro__:
        if isinstance(function := vars(base).get(name), FunctionType):
            yield function.__code__
            if "super" not in function.__code__.co_names:
                return


def _changed_by(code: CodeType) -> Iterator[str]:
    """Attributes of its first argument."""
    yield from loop_code.handed_on_by(code)
    split = (path.rpartition(".") for path in augmented(instructions(code)))
    yield from (name for owner, _, name in split if owner in code.co_varnames[:1])


def _used_by(code: CodeType) -> Iterator[str]:
    """Attributes that it reads, and not only to change them (but also to test whether to)."""
    for one in statements_in(instructions(code)):
        part = between(code, one.begin, one.end + 1)
        rest = without_test(part)
        test = part[: len(part) - len(rest)]
        yield from (each.argval for each in test if each.opname == "LOAD_ATTR")
        yield from (one.attributes if not test else _read_by(rest)) - attribute_code.attributes_stored(rest)


def _read_by(part: Sequence[Instruction]) -> set[str]:
    return set().union(*(one.attributes for one in statements_in(part)))


def _names_in(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for one in code.co_consts:
        if isinstance(one, CodeType):
            yield from _names_in(one)
        elif isinstance(one, str):
            yield one


@dataclass(frozen=True)
class _Held:
    """An attribute, or an item of a list or dict in one."""

    owner: Any
    name: Any
    value: Any

    @property
    def path(self) -> str:
        """As of a place."""
        return f"[{self.name!r}]" if isinstance(self.owner, WITH_ITEMS) else f".{self.name}"

    @property
    def may_be_shared(self) -> bool:
        """A variable, or another object, may have it, too."""
        return isinstance(self.value, (*CHANGEABLE, nn.Module))

    @property
    def which(self) -> int:
        """Two attributes may have the same list."""
        return id(self.value if self.may_be_shared else self.owner)

    def may_be(self, other: _Held) -> bool:
        """Whether a value of this name in a state may be the other one's."""
        return other.name == self.name and same(other.value, self.value)


def _held(owner: Any, depth: int, seen: set[int]) -> Iterator[_Held]:
    """By ``owner``, and by what it has."""
    if id(owner) in seen or isinstance(owner, nn.Module):
        return
    seen.add(id(owner))
    for name, value in inner(owner):
        yield _Held(owner, name, value)
        if depth > 1:
            yield from _held(value, depth - 1, seen)


def _values(key: Any, value: Any) -> Iterator[tuple[Any, Any]]:
    """A state, and all that it holds, each with its key."""
    yield key, value
    if isinstance(value, WITH_ITEMS):
        for name, one in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _values(name, one)


def _variables_of(tracked: Any) -> Iterator[tuple[str, Any]]:
    """Variables of the functions around its class, or of its module, that both functions for its state name, and that
    the one that takes a state over sets, or changes in place.
    """
    saves, loads = (getattr(type(tracked), name, None) for name in _OF_STATES)
    if not (isinstance(saves, FunctionType) and isinstance(loads, FunctionType)):
        return
    its = inspect.getclosurevars(saves)
    sets = {one.argval for one in instructions(loads.__code__) if one.opname in ("STORE_DEREF", "STORE_GLOBAL")}
    named = {*loads.__code__.co_freevars, *loads.__code__.co_names}
    for name, value in {**its.globals, **its.nonlocals}.items():
        if name in sets or (name in named and isinstance(value, CHANGEABLE)):
            yield name, value


def _around(tracked: Any) -> Mapping[str, Any]:
    """The variables of functions around its class that its state is made of."""
    saves = getattr(type(tracked), _OF_STATES[0], None)
    return inspect.getclosurevars(saves).nonlocals if isinstance(saves, FunctionType) else {}


def _numbers_of(value: Any) -> set[int]:
    return {id(value), memory_of(value)} if isinstance(value, ARRAYS) else {id(value)}


def _read_for_state(owner: Any) -> tuple[str, ...]:
    function = getattr(type(owner), "state_dict", None)
    return function.__code__.co_names if isinstance(function, FunctionType) else ()
