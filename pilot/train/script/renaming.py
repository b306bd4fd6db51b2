"""What the variables and attributes of a function are called where it is written in place of its call; see
:mod:`pilot.train.script.inlining`.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass, field
from types import FrameType, FunctionType
from typing import Protocol, cast

from pilot.train.script.source import copied, name_of, set_line

MARK = 1 << 20
"""The line of the call that is running."""
NOTHING = object()
Comprehension = ast.ListComp | ast.SetComp | ast.GeneratorExp


@dataclass
class Scope:
    """A function's: what its variables are called, or are, in the whole; ``frame``: if it is running."""

    names: dict[str, ast.expr]
    suffix: str
    function: FunctionType | None
    frame: FrameType | None
    returned: str = ""
    varargs: dict[str, list[ast.expr]] = field(default_factory=dict)
    keywords: dict[str, list[ast.keyword]] = field(default_factory=dict)

    @property
    def is_first(self) -> bool:
        """Whether it is that of the whole."""
        return not self.returned

    def value_around(self, name: str) -> object:
        """Of a variable that is not its own; :data:`NOTHING`: it has none."""
        if self.function is None:
            values = {**self.frame.f_globals, **self.frame.f_locals} if self.frame is not None else {}
            return values.get(name, NOTHING)
        code = self.function.__code__
        if name not in code.co_freevars:
            return self.function.__globals__.get(name, NOTHING)
        try:
            return (self.function.__closure__ or ())[code.co_freevars.index(name)].cell_contents
        except ValueError:  # it was not set yet
            return NOTHING


class Names(Protocol):
    """What a function's names are in the whole."""

    def variable(self, name: str, scope: Scope) -> ast.expr:
        """A variable of the function."""

    def attribute(self, node: ast.Attribute) -> ast.expr:
        """An attribute of an object."""

    def is_property(self, node: ast.Attribute) -> bool:
        """Whether it is a property of one of the script's objects."""


_Written = Callable[[ast.Call | Comprehension], ast.expr | None]


class Renamed(ast.NodeTransformer):
    """An expression of a function as it is in the whole. ``names``: knows its names there; ``written``: returns what
    stands for a call.
    """

    def __init__(self, names: Names, scope: Scope, written: _Written | None) -> None:
        self._names, self._scope, self._written = names, scope, written

    def visit_Name(self, node: ast.Name) -> ast.AST:
        """A variable."""
        made = self._names.variable(node.id, self._scope)
        if isinstance(made, ast.Name):
            return ast.copy_location(ast.Name(made.id, node.ctx), node)
        return ast.copy_location(copied(made) if isinstance(node.ctx, ast.Load) else node, node)

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        """Of an object; a property is called."""
        original = copied(node) if self._written is not None else node
        made = self._names.attribute(cast(ast.Attribute, self.generic_visit(node)))
        if self._written is not None and isinstance(made, ast.Attribute) and self._names.is_property(made):
            made = self._written(ast.copy_location(ast.Call(original, [], []), node)) or made
        return ast.copy_location(made, node)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        """Its function and arguments first."""
        function = copied(node.func) if self._written is not None else node.func
        made = cast(ast.Call, self.generic_visit(node))
        made.args = [each for one in made.args for each in self._unstarred(one)]
        made.keywords = [each for one in made.keywords for each in self._unpacked(one)]
        if self._written is None:
            return made
        call = ast.copy_location(ast.Call(function, made.args, made.keywords), made)
        stands = self._written(call)
        if stands is None:
            return _located(made, call)
        return stands

    def _unstarred(self, one: ast.expr) -> list[ast.expr]:
        its = self._scope.varargs.get(self._name(one.value)) if isinstance(one, ast.Starred) else None
        return [one] if its is None else [copied(one) for one in its]

    def _unpacked(self, one: ast.keyword) -> list[ast.keyword]:
        its = self._scope.keywords.get(self._name(one.value)) if one.arg is None else None
        return [one] if its is None else [copied(one) for one in its]

    def _name(self, node: ast.expr) -> str:
        """As its function has it."""
        return name_of(node).removesuffix(self._scope.suffix)

    def _stays(self, node: ast.AST) -> ast.AST:
        """Calls in it do, but for those of a comprehension that is running."""
        if self._written is not None and isinstance(node, Comprehension) and (stands := self._written(node)):
            return stands
        return Renamed(self._names, self._scope, None).generic_visit(node)

    visit_Lambda = visit_ListComp = visit_SetComp = visit_DictComp = visit_GeneratorExp = _stays  # noqa: N815  # ast's names


def _located(made: ast.Call, call: ast.Call) -> ast.Call:
    """The running one keeps its mark."""
    if call.lineno == MARK:
        for one in ast.walk(made):
            set_line(one, MARK)
    return made
