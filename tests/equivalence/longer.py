"""A plugin (``pytest -p tests.equivalence.longer``) that makes the tests' scripts long, without any effect on what they
do: a look at their code must see the same.

Each loop jumps over more than 255 code units, and each function has more than 127 names, so arguments of instructions
have several parts.
"""

from __future__ import annotations

import ast

from _pytest.assertion import rewrite

_LONG = "(0).real\n" * 40
_MANY_NAMES = "for _ in ():\n" + "".join(f"    (0).name{number}\n" for number in range(200))


class _Longer(ast.NodeTransformer):
    def _loop(self, node: ast.For | ast.While) -> ast.AST:
        self.generic_visit(node)
        node.body += ast.parse(_LONG).body
        return node

    visit_For = visit_While = _loop  # noqa: N815  # the names are ast's

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        self.generic_visit(node)
        has_docstring = ast.get_docstring(node) is not None
        node.body[has_docstring:has_docstring] = ast.parse(_MANY_NAMES).body
        return node


def _rewritten(tree: ast.Module, *arguments: object) -> None:
    _rewrite(ast.fix_missing_locations(_Longer().visit(tree)), *arguments)


_rewrite = rewrite.rewrite_asserts
rewrite.rewrite_asserts = _rewritten
rewrite._read_pyc = lambda *_: None  # type: ignore[assignment]  # those of the tests as they are
rewrite._write_pyc = lambda *_: None  # type: ignore[assignment]  # as above
