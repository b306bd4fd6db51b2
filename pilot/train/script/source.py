"""A function's source as a tree: where it is, and what is in it."""

from __future__ import annotations

import ast
import inspect
import linecache
import textwrap
from collections import deque
from collections.abc import Sequence
from functools import cache
from types import CodeType, FrameType
from typing import TypeVar, cast

Node = TypeVar("Node", bound=ast.AST)


@cache
def tree_of(code: CodeType) -> ast.Module:
    """Its lines and columns are those of the file. (Not to be changed.)"""
    lines, first = linecache.getlines(code.co_filename), 1
    if code.co_name != "<module>":
        first = code.co_firstlineno
        lines = inspect.getblock(lines[first - 1 :])
    source = textwrap.dedent("".join(lines))
    tree = ast.parse(source)
    ast.increment_lineno(tree, first - 1)
    indent = len(lines[0]) - len(source.partition("\n")[0]) - 1
    for one in ast.walk(tree) if indent > 0 else ():
        if isinstance(one, ast.expr):
            one.end_col_offset = (one.end_col_offset or 0) + indent
    return tree


def copied(node: Node) -> Node:
    """Of a tree, many times faster than ``deepcopy``."""
    made = type(node).__new__(type(node))
    its = vars(made)
    for name, value in vars(node).items():
        if isinstance(value, list):
            its[name] = [copied(one) if isinstance(one, ast.AST) else one for one in value]
        else:
            its[name] = copied(value) if isinstance(value, ast.AST) and value._fields else value
    return made


def function_in(tree: ast.Module) -> ast.FunctionDef:
    """The one that it is of; :class:`TypeError`: it is no such function."""
    found = tree.body[0]
    if not isinstance(found, ast.FunctionDef):
        raise TypeError(f"{type(found).__name__} is no function")
    return found


def set_in_loops(tree: ast.Module) -> set[str]:
    """Variables that have other objects in each turn."""
    outer, loops = deque[ast.AST]([tree]), list[ast.AST]()
    while outer:
        one = outer.popleft()
        (loops if isinstance(one, ast.For | ast.While) else outer).extend(ast.iter_child_nodes(one))
    nodes = (one for each in loops for one in ast.walk(each))
    return {one.id for one in nodes if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)}


def with_else(body: Sequence[ast.stmt]) -> list[ast.stmt]:
    """What follows an early return is its ``else``."""
    for at, one in enumerate(body):
        if isinstance(one, ast.If) and not one.orelse and isinstance(one.body[-1], ast.Return):
            rest = with_else(body[at + 1 :])
            return [*body[:at], ast.copy_location(ast.If(one.test, one.body, rest), one)]
    return list(body)


def set_line(node: ast.AST, line: int) -> None:
    """Where it is to be."""
    if isinstance(node, ast.expr | ast.stmt | ast.excepthandler | ast.arg | ast.keyword | ast.alias):
        node.lineno = node.end_lineno = line
        node.col_offset = node.end_col_offset = 0


def place_of(node: ast.Call) -> tuple[int, int]:
    """Where it ends. (Where it begins depends on the version of Python.)"""
    return node.end_lineno or 0, node.end_col_offset or 0


def running_place(frame: FrameType) -> tuple[int, int]:
    """The same, of the call that a function runs."""
    _, line, _, column = list(frame.f_code.co_positions())[frame.f_lasti // 2]
    return line or 0, column or 0


def path_of(node: ast.expr) -> list[str]:
    """Of a variable, or an attribute of an object in one; empty: it is something else."""
    if isinstance(node, ast.Name):
        return [node.id]
    before = path_of(node.value) if isinstance(node, ast.Attribute) else []
    return [*before, cast(ast.Attribute, node).attr] if before else []


def name_of(node: ast.expr) -> str:
    """Of a variable; empty: it is something else."""
    return node.id if isinstance(node, ast.Name) else ""


def with_attribute(call: ast.Call) -> ast.Attribute | None:
    """What ``getattr`` stands for, of a name that is a constant."""
    match call:
        case ast.Call(ast.Name("getattr"), [owner, ast.Constant(str(name)), *_]):
            return ast.Attribute(owner, name, ast.Load())
    return None


def assigned(definition: ast.FunctionDef) -> set[str]:
    """The variables that a function sets."""
    nodes = [one for each in definition.body for one in ast.walk(each)]
    others = {name for one in nodes if isinstance(one, ast.Global | ast.Nonlocal) for name in one.names}
    found = {one.id for one in nodes if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store | ast.Del)}
    found |= {one.name for one in nodes if isinstance(one, ast.FunctionDef | ast.ClassDef)}
    return found - others
