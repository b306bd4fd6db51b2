"""Small mistakes in a module: every place where one can be made, and the module with one of them in it."""

from __future__ import annotations

import ast
import copy
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
NAMES = {"any": "all", "all": "any", "min": "max", "max": "min"}


@dataclass(frozen=True, slots=True)
class Mutant:
    """``place`` is which of the mutable nodes of the module at ``path`` is another one in it."""

    path: str
    line: int
    place: int
    before: str
    after: str

    @property
    def what(self) -> str:
        """The mistake, wherever its line is by now."""
        return f"{self.before}  ->  {self.after}"

    def source(self) -> str:
        """The module with the mistake."""
        tree = ast.parse(Path(self.path).read_text())
        node, parent, field, index = _places(tree)[self.place]
        _put(parent, field, index, _mutated(node))
        return ast.unparse(ast.fix_missing_locations(tree))


def mutants(path: str) -> Iterator[Mutant]:
    """All of a module."""
    for place, (node, parent, _, _) in enumerate(_places(ast.parse(Path(path).read_text()))):
        shown = parent if isinstance(node, ast.cmpop | ast.operator | ast.boolop) else node
        changed = copy.deepcopy(shown)
        if shown is node:
            changed = _mutated(changed)
        else:
            _swap_operator(changed, node, parent)
        line = getattr(shown, "lineno", 0)
        yield Mutant(path, line, place, _short(shown), _short(changed))


_Place = tuple[ast.AST, ast.AST, str, int | None]


def _places(tree: ast.AST) -> list[_Place]:
    """The nodes that can be others, each with where it hangs, in the order of the source."""
    return [place for place in _walk(tree) if _is_mutable(place[0])]


def _walk(parent: ast.AST) -> Iterator[_Place]:
    """All nodes but annotations, texts, and what is only there for people: assertions and errors."""
    if isinstance(parent, ast.Assert | ast.Raise | ast.JoinedStr | ast.Import | ast.ImportFrom):
        return
    for field, value in ast.iter_fields(parent):
        if field in ("annotation", "returns", "decorator_list"):
            continue
        for index, node in enumerate(value) if isinstance(value, list) else [(None, value)]:
            if isinstance(node, ast.AST):
                yield node, parent, field, index
                yield from _walk(node)


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


def _put(parent: ast.AST, field: str, index: int | None, node: ast.AST) -> None:
    if index is None:
        setattr(parent, field, node)
    else:
        getattr(parent, field)[index] = node


def _swap_operator(changed: ast.AST, node: ast.AST, parent: ast.AST) -> None:
    """In a copy of ``parent``, the operator ``node``."""
    for field, value in ast.iter_fields(parent):
        if value is node:
            setattr(changed, field, _mutated(node))
        elif isinstance(value, list) and any(item is node for item in value):
            getattr(changed, field)[next(i for i, item in enumerate(value) if item is node)] = _mutated(node)


def _short(node: ast.AST) -> str:
    """Its first line."""
    return ast.unparse(ast.fix_missing_locations(node)).split("\n")[0]
