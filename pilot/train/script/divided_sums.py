"""Whether a script's loss is a sum that it divides by another one: ``(losses * mask).sum() / mask.sum()``."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from functools import cache
from itertools import dropwhile
from types import CodeType, FrameType

from pilot.train.script.bytecode import between, running_at
from pilot.train.script.loop_code import heads
from pilot.train.script.refusal import frames
from pilot.train.script.source import tree_of
from pilot.train.script.step_uses import RunningStatement, uses_of


def divides_by_a_sum(user: Mapping[str, object]) -> bool:
    """In a statement of its running loop from which the loss comes, or in a function that such a one calls. ``user``:
    ``session.state``.
    """
    running = list(dropwhile(lambda frame: not _heads(frame), [*frames()][::-1]))
    parts = uses_of(running, _heads(running[0])[0], user).parts if running else []
    return any(_is_in(part.frame.f_code, _lines(part)) or any(map(_is_in, part.called)) for part in parts)


def _heads(frame: FrameType) -> list[int]:
    return heads(frame.f_code, running_at(frame))


def _lines(part: RunningStatement) -> frozenset[int]:
    its = between(part.frame.f_code, part.statement.begin, part.statement.end + 1)
    return frozenset(one.positions.lineno for one in its if one.positions and one.positions.lineno)


@cache
def _is_in(code: CodeType, lines: Collection[int] | None = None) -> bool:
    """In these lines of a function, or in all of it."""
    nodes: list[ast.AST] = []
    with suppress(SyntaxError, IndexError, OSError):  # of a lambda, or one without a source
        nodes = list(ast.walk(tree_of(code)))
    named = set[str]()
    for one in nodes:
        if isinstance(one, ast.Assign) and _has_sum(one.value, named):
            named |= {target.id for target in one.targets if isinstance(target, ast.Name)}
    return any(
        lines is None or division.lineno in lines
        for division in _divisions(nodes)
        if _has_sum(division.left, named) and _has_sum(division.right, named)
    )


def _divisions(nodes: Collection[ast.AST]) -> Iterator[ast.BinOp]:
    return (one for one in nodes if isinstance(one, ast.BinOp) and isinstance(one.op, ast.Div))


def _has_sum(node: ast.expr, named: set[str]) -> bool:
    """Of all numbers, or a variable that has one."""
    return any(_is_sum(one) or (isinstance(one, ast.Name) and one.id in named) for one in ast.walk(node))


def _is_sum(node: ast.AST) -> bool:
    match node:
        case ast.Call(ast.Attribute(ast.Name("torch"), "sum"), [_], []):
            return True
        case ast.Call(ast.Attribute(_, "sum"), [], []):
            return True
    return False
