"""What the variables and attributes are called, and are, of the functions that
:mod:`pilot.train.script.inlining` writes as one.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import CodeType, FrameType, FunctionType, MemberDescriptorType
from typing import Any, cast

import torch
from torch import nn

from pilot.train.script import loop_code, parameter_reads
from pilot.train.script.objects import attribute_of, is_of_the_script
from pilot.train.script.refusal import DOT
from pilot.train.script.renaming import NOTHING, Scope
from pilot.train.script.source import path_of

_MOST_ITEMS = 10
"""Of a list of objects whose methods a loop calls."""


@dataclass(frozen=True, eq=False)
class Inlined:
    """What looks ask of a running function."""

    f_code: CodeType
    f_lasti: int
    f_locals: dict[str, Any]
    f_globals: dict[str, Any]
    f_back: None = None


class WholeNames:
    """``first``: the first running function; ``replaced``: variables whose objects' attributes stay attributes.
    ``values``: of variables that the whole has and that function has not; ``owners``: the variables whose objects'
    attributes have become variables.
    """

    def __init__(self, first: FrameType, replaced: Collection[str]) -> None:
        self._first = first
        self._replaced = replaced
        self.owners = set[str]()
        self.values: dict[str, Any] = {}
        self._known = {id(one): name for name, one in reversed(first.f_locals.items()) if is_object(one)}

    def variable(self, name: str, scope: Scope) -> ast.expr:
        """What a function's variable is in the whole."""
        if name in scope.names or scope.is_first:
            return scope.names.get(name, ast.Name(name, ast.Load()))
        value, first = scope.value_around(name), self._first
        if value is NOTHING or first.f_locals.get(name, first.f_globals.get(name)) is value:
            return ast.Name(name, ast.Load())
        return self.named(f"{name}{scope.suffix}", value)

    def named(self, name: str, value: object) -> ast.expr:
        """A variable that has it."""
        if is_object(value) and id(value) in self._known:
            return ast.Name(self._known[id(value)], ast.Load())
        taken = {**self._first.f_globals, **self._first.f_locals, **self.values}
        names = (name if not number else f"{name}_{number}" for number in range(len(taken) + 1))
        found = next(one for one in names if one not in taken or taken[one] is value)
        self.values[found] = value
        return ast.Name(found, ast.Load())

    def attribute(self, node: ast.Attribute) -> ast.expr:
        """What an attribute is in the whole."""
        path = path_of(node)
        owner = self.value(path[:-1]) if path else None
        kind = owner if isinstance(owner, type) else type(owner)
        if not is_of_the_script(kind) or issubclass(kind, nn.Module):
            return node
        held, static = getattr(owner, "__dict__", {}), inspect.getattr_static(type(owner), node.attr, None)
        is_own = node.attr in held or isinstance(static, MemberDescriptorType)
        if not is_own and static is not None and callable(getattr(static, "__get__", None)):
            return node  # a method, or a property
        base = self._known.setdefault(id(owner), ".".join(path[:-1]))
        if base in self._replaced:
            return node
        self.owners.add(base)
        name = f"{base}{DOT}{node.attr}"
        self.values[name] = value = attribute_of(owner, node.attr) if is_own else static
        if is_object(value):
            name = self._known.setdefault(id(value), name)
        return ast.Name(name, node.ctx)

    def is_property(self, node: ast.Attribute) -> bool:
        """Of one of the script's objects."""
        path = path_of(node)
        owner = self.value(path[:-1]) if path else None
        return is_of_the_script(type(owner)) and isinstance(
            inspect.getattr_static(type(owner), node.attr, None), property
        )

    def is_method(self, path: Sequence[str]) -> bool:
        """Of one of the script's objects."""
        kind = type(self.value(path[:-1]))
        return is_of_the_script(kind) and isinstance(inspect.getattr_static(kind, path[-1], None), FunctionType)

    def value(self, path: Sequence[str]) -> Any:
        """Of a variable, or of an object's attribute; None: it has none, or the path is empty."""
        variable, *attributes = path or ("",)
        if variable in self.values:
            made = Inlined(self._first.f_code, 0, self.values, {})
            return parameter_reads.value_of(cast(FrameType, made), variable, *attributes)
        return parameter_reads.value_of(self._first, variable, *attributes)

    def held(self, node: ast.expr) -> tuple[str, Any]:
        """The value of a variable, of an object's attribute or of an item of these, and its name; None: it has none."""
        if isinstance(node, ast.Subscript):
            name, holder = self.held(node.value)
            key: Any = node.slice.value if isinstance(node.slice, ast.Constant) else self.value(path_of(node.slice))
            with suppress(LookupError, TypeError):
                if isinstance(holder, dict):
                    return f"{name}[{key!r}]", dict.get(holder, key)  # a defaultdict would make it
                return f"{name}[{key!r}]", holder[key] if type(holder) is list else None
            return "", None
        path = path_of(node)
        return (path[-1], self.value(path)) if path else ("", None)

    def items(self, node: ast.expr) -> tuple[str, list[Any]]:
        """What a loop goes through, and its name: a list or a tuple, in whatever order or with numbers, or what a dict
        has; not if it is long.
        """
        match node:
            case ast.Call(ast.Name("sorted" | "list" | "tuple" | "reversed"), [inner, *_]):
                return self.items(inner)
            case ast.Call(ast.Name("enumerate"), [inner, *_]):
                name, found = self.items(inner)
                return name, list(enumerate(found))
            case ast.Call(ast.Attribute(inner, "values" | "items" as kind), []):
                name, held = self.held(inner)
                held = getattr(dict, kind)(held) if isinstance(held, dict) else ()
            case _:
                name, held = self.held(node)
                held = held if isinstance(held, list | tuple) else ()
        return name, list(held) if len(held) <= _MOST_ITEMS else []

    def is_state(self, path: Sequence[str]) -> bool:
        """Whether it is ``session.state``."""
        return path[-1:] == ["state"] and type(self.value(path[:-1])).__module__ == loop_code.SESSION


def is_object(value: object) -> bool:
    """Whether it is one that stays."""
    kinds = (nn.Module, torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler)
    return isinstance(value, kinds) or is_of_the_script(type(value)) or type(value).__module__ == loop_code.SESSION
