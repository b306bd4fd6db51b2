"""In a loop as one function (:mod:`pilot.train.script.inlined`), items of dicts are variables, as attributes of objects
are: ``logs["loss"]``, if all that it does with a dict is to use such items, to make it anew, and to print it.
"""

from __future__ import annotations

import ast
from collections import OrderedDict, defaultdict
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from pilot.train.script.source import name_of

_KINDS = (dict, defaultdict, OrderedDict)


def as_variables(tree: ast.Module, values: Mapping[str, Any], state: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Make them variables in this tree, and say what they are. ``values``: of its variables; ``state``: the session's,
    which looks know as it is, and so are dicts in it.
    """
    items: dict[str, set[str]] = {}
    for one in ast.walk(tree):
        if isinstance(one, ast.Subscript) and (key := _key_of(one)) is not None:
            items.setdefault(name_of(one.value), set()).add(key)
    known = {id(one) for one in (state, *state.values())}
    wanted = {name for name in items if type(values.get(name)) in _KINDS and id(values[name]) not in known}
    wanted -= {*_used_otherwise(tree)}
    _AsVariables({name: items[name] for name in wanted}).visit(tree)
    yield from ((_variable(name, key), values[name].get(key)) for name in wanted for key in items[name])


def _key_of(node: ast.Subscript) -> str | None:
    its = node.slice
    return its.value if isinstance(its, ast.Constant) and isinstance(its.value, str) else None


def _used_otherwise(tree: ast.AST) -> Iterator[str]:
    """Variables of which more is used than such items; but for what is only printed or logged."""
    for one in ast.iter_child_nodes(tree):
        if isinstance(one, ast.Expr) and isinstance(one.value, ast.Call):
            arguments = [*one.value.args, *(each.value for each in one.value.keywords)]
            for each in (one.value.func, *(each for each in arguments if not isinstance(each, ast.Name))):
                yield from _within(each)
        elif isinstance(one, ast.For | ast.comprehension):  # an optimizer's groups, batches
            yield from (each.id for each in ast.walk(one.target) if isinstance(each, ast.Name))
            yield from _used_otherwise(one)
        elif isinstance(one, ast.Assign) and not _is_new(one.value):
            yield from map(name_of, one.targets)
            yield from _within(one.value)
        else:
            yield from _within(one)


def _within(one: ast.AST) -> Iterator[str]:
    if isinstance(one, ast.Name):
        yield from [one.id] if isinstance(one.ctx, ast.Load) else []
    elif isinstance(one, ast.Subscript) and _key_of(one) is not None and isinstance(one.value, ast.Name):
        return
    else:
        yield from _used_otherwise(one)


def _is_new(value: ast.expr) -> bool:
    its = value.func if isinstance(value, ast.Call) else None
    return isinstance(value, ast.Dict) or bool(its and name_of(its) in {one.__name__ for one in _KINDS})


class _AsVariables(ast.NodeTransformer):
    """``items``: their keys, by variable."""

    def __init__(self, items: Mapping[str, Collection[str]]) -> None:
        self._items = items

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        """An item."""
        name, key = name_of(node.value), _key_of(node)
        if name in self._items and key is not None:
            return ast.copy_location(ast.Name(_variable(name, key), node.ctx), node)
        return self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> Any:
        """A new dict has new items."""
        made, name = self.generic_visit(node), name_of(node.targets[0])
        if name not in self._items:
            return made
        given = dict(zip(node.value.keys, node.value.values, strict=True)) if isinstance(node.value, ast.Dict) else {}
        values = {key.value: value for key, value in given.items() if isinstance(key, ast.Constant)}
        return [made, *(_set(name, key, values.get(key, ast.Constant(None))) for key in sorted(self._items[name]))]


def _set(name: str, key: str, value: ast.expr) -> ast.Assign:
    return ast.Assign([ast.Name(_variable(name, key), ast.Store())], value)


def _variable(name: str, key: str) -> str:
    return f"{name}[{key!r}]"
