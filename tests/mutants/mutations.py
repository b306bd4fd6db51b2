"""Small mistakes in a module: every place where one is possible, and the module with one of them in it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

SWAPPED: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.And: ast.Or,
    ast.Or: ast.And,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Break: ast.Continue,
    ast.Continue: ast.Break,
}
_LINE = 110
NAMES = {"any": "all", "all": "any", "min": "max", "max": "min"}


@dataclass(frozen=True, slots=True)
class Mutant:
    """``place``: which of the module's mutable nodes is replaced; the module is at ``path``."""

    path: str
    line: int
    place: int
    before: str
    after: str

    @property
    def what(self) -> str:
        """The mistake, independent of its current line."""
        return f"{self.before}  ->  {self.after}"

    def source(self) -> str:
        """The module with the mistake."""
        tree = ast.parse(Path(self.path).read_text())
        _places(tree)[self.place].mutate()
        return ast.unparse(ast.fix_missing_locations(tree))


def mutants(path: str) -> Iterator[Mutant]:
    """All mistakes of a module."""
    for number, place in enumerate(_places(ast.parse(Path(path).read_text()))):
        shown, before = place.shown, _text(place.shown)
        place.mutate()
        yield Mutant(path, getattr(shown, "lineno", 0), number, before, _text(place.now(shown)))
        place.restore()


@dataclass(frozen=True, slots=True)
class _Place:
    """``node`` is at ``index`` of ``field`` of ``parent``; reports show it within ``shown``."""

    node: ast.AST
    parent: ast.AST
    field: str
    index: int | None
    shown: ast.AST

    def mutate(self) -> None:
        """Insert the mistake."""
        self._put(_mutated(self.node))

    def restore(self) -> None:
        """Restore the original."""
        self._put(self.node)

    def now(self, shown: ast.AST) -> ast.AST:
        """The text shown with the mistake inserted."""
        if shown is not self.node:
            return shown
        there = getattr(self.parent, self.field)
        found: ast.AST = there if self.index is None else there[self.index]
        return found

    def _put(self, node: ast.AST) -> None:
        if self.index is None:
            setattr(self.parent, self.field, node)
        else:
            getattr(self.parent, self.field)[self.index] = node


def _places(tree: ast.AST) -> list[_Place]:
    """The mutable nodes, in source order."""
    return [place for place in _walk(tree, ()) if _is_mutable(place.node)]


def _walk(parent: ast.AST, above: tuple[ast.AST, ...]) -> Iterator[_Place]:
    """All nodes except annotations, strings, and what is only meant for people: assertions and errors."""
    if isinstance(parent, ast.Assert | ast.Raise | ast.JoinedStr | ast.Import | ast.ImportFrom):
        return
    for field, value in ast.iter_fields(parent):
        if field in ("annotation", "returns", "decorator_list"):
            continue
        for index, node in enumerate(value) if isinstance(value, list) else [(None, value)]:
            if isinstance(node, ast.AST):
                line = (node, parent, *above)
                yield _Place(node, parent, field, index, _shown(line))
                yield from _walk(node, line[1:])


def _shown(line: tuple[ast.AST, ...]) -> ast.AST:
    """The largest expression or simple statement around the first one that fits on a line."""
    simple = [
        node for node in line if isinstance(node, ast.expr) or (isinstance(node, ast.stmt) and not _is_block(node))
    ]
    fitting = [node for node in simple if len(ast.unparse(node)) <= _LINE]
    return fitting[-1] if fitting else next(node for node in line if isinstance(node, ast.expr | ast.stmt))


def _is_block(node: ast.stmt) -> bool:
    return hasattr(node, "body")


def _is_mutable(node: ast.AST) -> bool:
    match node:
        case ast.Constant(value=value):
            return isinstance(value, bool | int | float)
        case ast.Name(id=name):
            return name in NAMES
        case ast.UnaryOp(op=ast.Not() | ast.USub()) | ast.If():
            return True
        case ast.Expr(value=ast.Call()) | ast.AugAssign():
            return True
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript(), *_]):
            return True
        case ast.Load() | ast.Store():
            return False
        case _:
            return type(node) in SWAPPED


def _mutated(node: ast.AST) -> ast.AST:
    match node:
        case ast.Constant(value=bool(value)):
            return ast.Constant(not value)
        case ast.Constant(value=value):
            assert isinstance(value, int | float)
            return ast.Constant(value + 1)
        case ast.Name(id=name):
            return ast.Name(NAMES[name], ast.Load())
        case ast.UnaryOp(operand=operand):
            return operand
        case ast.If():
            return ast.If(ast.UnaryOp(ast.Not(), node.test), node.body, node.orelse)
        case ast.Expr() | ast.AugAssign() | ast.Assign():
            return ast.Pass()
        case _:
            return SWAPPED[type(node)]()


def _text(node: ast.AST) -> str:
    """On one line, unless it is a whole block, which is shown by its first line."""
    return ast.unparse(ast.fix_missing_locations(node)).split("\n")[0]
