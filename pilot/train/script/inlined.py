"""The script's loop as one function: the functions of its own that it calls (methods of a trainer, callbacks in a list)
are written where they are called, so that who reads the loop's code reads theirs, too.

Made from the source. Variables of such a function get other names, its arguments are those of the call, and what it
returns is a variable, as are attributes of the script's objects (``self.count``: each object has one name, by which it
was seen first). What cannot be written so (generators, calls in comprehensions) stays a call.
"""

from __future__ import annotations

import ast
import copy
import inspect
import linecache
import textwrap
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from types import CodeType, FrameType, FunctionType, MethodType
from typing import Any, cast

import torch
from torch import nn

from pilot.train.script import loop_code, parameter_reads
from pilot.train.script.bytecode import instructions, running_at
from pilot.train.script.objects import is_of_the_script
from pilot.train.script.refusal import DOT, is_of_a_library

_DEPTH = 4
_MOST = 60
"""How deep calls are followed, and how many."""
_MOST_ITEMS = 10
"""Of a list of objects whose methods a loop calls."""
_MARK = 1 << 20
"""The line of the call that is running."""
_NO_FUNCTIONS = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


@dataclass(frozen=True, eq=False)
class Inlined:
    """What looks ask of a running function."""

    f_code: CodeType
    f_lasti: int
    f_locals: dict[str, Any]
    f_globals: dict[str, Any]
    f_back: None = None


def inlined(frames: Sequence[FrameType], head: int) -> tuple[FrameType, int] | None:
    """The first of these running functions with all that it calls, and where its loop begins; None: it calls nothing of
    the script's, or cannot be read.

    Parameters
    ----------
    frames : the running functions, from the one with the session's loop on to the one that steps
    head : where that loop begins
    """
    try:
        made = _Inliner(frames)
        tree = made.whole()
        if replaced := made.owners & _set_in_loops(tree):
            made = _Inliner(frames, replaced)
            tree = made.whole()
        code = _compiled(tree, frames[0].f_code) if made.calls else None
    except Exception:  # what cannot be read (there is no source, or another one) is not told of
        return None
    around = loop_code.heads(frames[0].f_code, running_at(frames[0]))
    if code is None or head not in around:
        return None
    at = max((one.offset for one in instructions(code) if _line_of(code, one.offset) == _MARK), default=None)
    outer = around.index(head)
    heads = loop_code.heads(code, at) if at is not None else []
    if at is None or len(heads) <= outer:
        return None
    values = {**frames[0].f_locals, **made.values}
    return cast(FrameType, Inlined(code, at, values, frames[0].f_globals)), heads[outer]


def _compiled(tree: ast.Module, like: CodeType) -> CodeType:
    for one in ast.walk(tree):
        _set_line(one, _MARK if getattr(one, "lineno", 0) == _MARK else 1)
    whole = compile(ast.fix_missing_locations(tree), like.co_filename, "exec")
    its = (one for one in whole.co_consts if isinstance(one, CodeType) and one.co_name == like.co_name)
    return next(its, whole)


def _line_of(code: CodeType, offset: int) -> int | None:
    places = list(code.co_positions())
    return places[offset // 2][0] if offset // 2 < len(places) else None


@cache
def _tree_of(code: CodeType) -> ast.Module:
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


def _function_in(tree: ast.Module) -> ast.FunctionDef:
    found = tree.body[0]
    if not isinstance(found, ast.FunctionDef):
        raise TypeError(f"{type(found).__name__} is no function")
    return found


@dataclass
class _Scope:
    """A function's: what its variables are called, or are, in the whole; ``frame``: if it is running."""

    names: dict[str, ast.expr]
    suffix: str
    function: FunctionType | None
    frame: FrameType | None
    varargs: dict[str, list[ast.expr]] = field(default_factory=dict)
    keywords: dict[str, list[ast.keyword]] = field(default_factory=dict)
    returned: str = ""


class _Inliner:
    """``frames``: the running functions; ``replaced``: variables whose objects' attributes stay attributes. ``values``:
    of variables that the whole has and the first of them has not; ``calls``: how many were written in place;
    ``owners``: the variables whose objects' attributes have become variables.
    """

    def __init__(self, frames: Sequence[FrameType], replaced: Collection[str] = ()) -> None:
        self._frames = list(frames)
        self._replaced = replaced
        self.owners = set[str]()
        self.values: dict[str, Any] = {}
        self.calls = 0
        self._known = {id(one): name for name, one in reversed(frames[0].f_locals.items()) if _is_object(one)}
        self._running: list[CodeType] = []
        self._written = set[str]()

    def whole(self) -> ast.Module:
        """The first function, or the module that it is."""
        first = self._frames[0]
        tree = _tree_of(first.f_code)
        scope = _Scope({}, "", None, first)
        if first.f_code.co_name == "<module>":
            return ast.Module(self._body(tree.body, scope, 0), [])
        function = copy.copy(_function_in(tree))
        function.decorator_list = []
        function.body = self._body(function.body, scope, 0)
        for name in first.f_code.co_freevars:  # which it has no function around it to have
            self.values.setdefault(name, first.f_locals.get(name))
        return ast.Module([function], [])

    # --- statements --------------------------------------------------------------------------------------------------

    def _body(self, body: Sequence[ast.stmt], scope: _Scope, depth: int) -> list[ast.stmt]:
        return [made for one in body for made in self._statement(one, scope, depth)] or [ast.Pass()]

    def _statement(self, one: ast.stmt, scope: _Scope, depth: int) -> Iterator[ast.stmt]:
        if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield cast(ast.stmt, _Renamed(self, scope, None).visit(copy.deepcopy(one)))
            return
        if isinstance(one, ast.Global | ast.Nonlocal):
            if scope.function is None:
                yield copy.copy(one)
            return
        if isinstance(one, ast.For) and (items := self._objects(one, scope)):
            for each in items:
                within = copy.copy(scope)
                within.names = scope.names | {cast(ast.Name, one.target).id: each}
                yield from self._body(one.body, within, depth)
            return
        if scope.function is not None and isinstance(one, ast.Assign) and self._is_name(one, scope):
            return
        before: list[ast.stmt] = []
        made = copy.copy(one)
        for name, value in ast.iter_fields(one):
            if name in ("body", "orelse", "finalbody"):
                setattr(made, name, self._body(value, scope, depth) if value else value)
            elif name == "handlers":
                made.handlers = [self._handler(each, scope, depth) for each in value]  # type: ignore[attr-defined]  # of ast.Try
            elif isinstance(value, ast.AST):
                setattr(made, name, self._expression(value, scope, depth, before))
            elif isinstance(value, list):
                setattr(made, name, [self._expression(each, scope, depth, before) for each in value])
        if isinstance(made, ast.Return) and scope.function is not None:
            yield from before
            if made.value is not None:
                yield ast.Assign([ast.Name(scope.returned, ast.Store())], made.value, lineno=one.lineno)
            return
        yield from before
        if not (isinstance(made, ast.Expr) and isinstance(made.value, ast.Name) and before):  # what it returned
            yield made

    def _is_name(self, one: ast.Assign, scope: _Scope) -> bool:
        """Whether it only gives another name to an object, which has one, or to ``session.state``."""
        made = self._in_whole(one.value, scope) if isinstance(one.value, ast.Name | ast.Attribute) else None
        path = _path(made) if made is not None else []
        is_state = path[-1:] == ["state"] and type(self._value(path[:-1])).__module__ == loop_code.SESSION
        target = one.targets[0] if len(one.targets) == 1 else None
        if (
            made is None
            or not isinstance(target, ast.Name)
            or not (path and (is_state or _is_object(self._value(path))))
        ):
            return False
        scope.names[target.id] = made
        return True

    def _handler(self, one: ast.ExceptHandler, scope: _Scope, depth: int) -> ast.ExceptHandler:
        made = copy.copy(one)
        made.body = self._body(one.body, scope, depth)
        return made

    def _expression(self, value: ast.AST, scope: _Scope, depth: int, before: list[ast.stmt]) -> ast.AST:
        renamed = _Renamed(self, scope, lambda call: self._call(call, scope, depth, before))
        return cast(ast.AST, renamed.visit(copy.deepcopy(value)))

    def _objects(self, loop: ast.For, scope: _Scope) -> list[ast.expr]:
        """The objects of the script's that are in a list, if the loop goes through that and calls their methods."""
        target = loop.target.id if isinstance(loop.target, ast.Name) else ""
        nodes = [one for each in loop.body for one in ast.walk(each)]
        uses = any(isinstance(one, ast.Name) and one.id == target for one in nodes)
        leaves = any(isinstance(one, ast.Break | ast.Continue) for one in nodes)
        path = _path(self._in_whole(loop.iter, scope))
        held = self._value(path) if path and target and uses and not leaves else None
        items = list(held) if isinstance(held, list | tuple) and len(held) <= _MOST_ITEMS else []
        if not all(is_of_the_script(type(one)) and not isinstance(one, nn.Module) for one in items):
            return []
        return [self._named(f"{path[-1]}_{number}", one) for number, one in enumerate(items)]

    # --- calls -------------------------------------------------------------------------------------------------------

    def _call(self, call: ast.Call, scope: _Scope, depth: int, before: list[ast.stmt]) -> ast.expr | None:
        """What stands for it, when what it runs was written before; None: it stays."""
        then = self._running_in(call, scope)
        if then is self._frames[-1] and scope.frame is then:
            for one in ast.walk(call):
                _set_line(one, _MARK)
            return None
        function, owner = self._function(call, scope)
        if function is None and then is None:
            return None
        code = then.f_code if then is not None else cast(FunctionType, function).__code__
        if then is None and (depth >= _DEPTH or self.calls >= _MOST or not _may_be_written(code)):
            return None
        if code in self._running or (function is not None and function.__code__ is not code):
            return None
        try:
            definition = _function_in(_tree_of(code))
        except (OSError, TypeError, SyntaxError, IndexError):
            return None
        self.calls += 1
        self._running.append(code)
        suffix = f"_in_{code.co_name}" + (f"_{self.calls}" if code.co_name in self._written else "")
        self._written.add(code.co_name)
        within = _Scope({}, suffix, function or cast(FunctionType, None), then, returned=f"{suffix[4:]}()")
        self._bind(call, definition, owner, scope, within, before)
        if then is not None:
            self._take_values(then, within)
        before += self._body(_with_else(definition.body), within, depth + 1)
        self._running.pop()
        return ast.Name(within.returned, ast.Load())

    def _running_in(self, call: ast.Call, scope: _Scope) -> FrameType | None:
        """The function that this call runs; of the innermost one itself."""
        frame = scope.frame
        if frame is None or _place(call) != _running_place(frame):
            return None
        number = next(at for at, one in enumerate(self._frames) if one is frame)
        return self._frames[min(number + 1, len(self._frames) - 1)]

    def _function(self, call: ast.Call, scope: _Scope) -> tuple[FunctionType | None, ast.expr | None]:
        """The script's own that is called, and whose method it is."""
        target = self._in_whole(call.func, scope)
        if isinstance(target, ast.Call) and _is_getattr(target):
            name = cast(str, cast(ast.Constant, target.args[1]).value)
            target = self.attribute(ast.Attribute(target.args[0], name, ast.Load()))
        path = _path(target)
        value = self._value(path) if path else None
        if isinstance(value, MethodType) and not isinstance(value.__self__, nn.Module):
            function = inspect.unwrap(value.__func__)
            owner: ast.expr | None = self._named(f"{path[-1]}_self", value.__self__)
        elif isinstance(value, FunctionType):
            function, owner = inspect.unwrap(value), None
        else:
            held = value if value is not None else (self._value(path[:-1]) if path[1:] else None)
            name = "__call__" if value is not None else (path[-1] if path else "")
            function = inspect.getattr_static(type(held), name, None) if held is not None else None
            function = function.fget if isinstance(function, property) else function
            function = inspect.unwrap(function) if isinstance(function, FunctionType) else function
            owner = target if value is not None else cast(ast.Attribute, target).value if path[1:] else None
            if isinstance(held, nn.Module | type):
                return None, None
        is_own = isinstance(function, FunctionType) and not is_of_a_library(function.__code__.co_filename)
        return (function, owner) if is_own else (None, None)

    def _bind(
        self,
        call: ast.Call,
        definition: ast.FunctionDef,
        owner: ast.expr | None,
        scope: _Scope,
        within: _Scope,
        before: list[ast.stmt],
    ) -> None:
        """Its parameters, and its own variables."""
        arguments = definition.args
        own = _assigned(definition)
        given: list[ast.expr] = [] if owner is None else [owner]
        for one in call.args:
            starred = scope.varargs.get(_name(one.value)) if isinstance(one, ast.Starred) else None
            given += starred if starred is not None else [one]
        named = [each for one in call.keywords for each in self._keywords_of(one, scope)]
        certain = next((at for at, one in enumerate(given) if isinstance(one, ast.Starred)), len(given))
        parameters = [*arguments.posonlyargs, *arguments.args]
        bound = {one.arg: value for one, value in zip(parameters, given[:certain], strict=False)}
        bound |= {one.arg: one.value for one in named if one.arg}
        others = (arguments.vararg, arguments.kwarg)
        known = {one.arg for one in (*parameters, *arguments.kwonlyargs, *filter(None, others))}
        if arguments.vararg:
            within.varargs[arguments.vararg.arg] = given[len(parameters) :]
        if arguments.kwarg:
            within.keywords[arguments.kwarg.arg] = [one for one in named if one.arg not in known]
        defaults = zip(reversed(parameters), reversed(arguments.defaults), strict=False)
        bound = {one.arg: default for one, default in defaults if isinstance(default, ast.Constant)} | bound
        for name in own | known:
            within.names[name] = ast.Name(f"{name}{within.suffix}", ast.Load())
        for name, value in bound.items():
            if name in known and name not in own and (_path(value) or isinstance(value, ast.Constant)):
                within.names[name] = value
            elif name in known:
                target = ast.Name(f"{name}{within.suffix}", ast.Store())
                before.append(ast.Assign([target], value, lineno=definition.lineno))

    def _keywords_of(self, one: ast.keyword, scope: _Scope) -> list[ast.keyword]:
        if one.arg is None:
            return scope.keywords.get(_name(one.value), [one])
        return [one]

    def _take_values(self, frame: FrameType, within: _Scope) -> None:
        for name, value in frame.f_locals.items():
            its = within.names.get(name)
            if isinstance(its, ast.Name):
                self.values.setdefault(its.id, value)

    # --- names and values --------------------------------------------------------------------------------------------

    def variable(self, name: str, scope: _Scope) -> ast.expr:
        """What a function's variable is in the whole."""
        if name in scope.names or scope.function is None:
            return scope.names.get(name, ast.Name(name, ast.Load()))
        code = scope.function.__code__
        if name in code.co_freevars:
            cells = scope.function.__closure__ or ()
            try:
                value = cells[code.co_freevars.index(name)].cell_contents
            except ValueError:
                return ast.Name(name, ast.Load())
        elif name in scope.function.__globals__:
            value = scope.function.__globals__[name]
        else:
            return ast.Name(name, ast.Load())
        first = self._frames[0]
        held = first.f_locals.get(name, first.f_globals.get(name))
        return ast.Name(name, ast.Load()) if held is value else self._named(f"{name}{scope.suffix}", value)

    def _named(self, name: str, value: object) -> ast.expr:
        """A variable that has it."""
        if _is_object(value) and id(value) in self._known:
            return ast.Name(self._known[id(value)], ast.Load())
        taken = {**self._frames[0].f_globals, **self._frames[0].f_locals, **self.values}
        names = (name if not number else f"{name}_{number}" for number in range(len(taken) + 1))
        found = next(one for one in names if one not in taken or taken[one] is value)
        self.values[found] = value
        return ast.Name(found, ast.Load())

    def attribute(self, node: ast.Attribute) -> ast.expr:
        """What an attribute is in the whole."""
        path = _path(node)
        owner = self._value(path[:-1]) if path else None
        if not is_of_the_script(type(owner)) or isinstance(owner, nn.Module | type):
            return node
        held, static = getattr(owner, "__dict__", {}), inspect.getattr_static(type(owner), node.attr, None)
        if node.attr not in held and static is not None and callable(getattr(static, "__get__", None)):
            return node  # a method, or a property
        base = self._known.setdefault(id(owner), ".".join(path[:-1]))
        if base in self._replaced:
            return node
        self.owners.add(base)
        name = f"{base}{DOT}{node.attr}"
        self.values[name] = value = held.get(node.attr, static)
        if _is_object(value):
            name = self._known.setdefault(id(value), name)
        return ast.Name(name, node.ctx)

    def is_property(self, node: ast.Attribute) -> bool:
        """Of one of the script's objects."""
        path = _path(node)
        owner = self._value(path[:-1]) if path else None
        return is_of_the_script(type(owner)) and isinstance(
            inspect.getattr_static(type(owner), node.attr, None), property
        )

    def _in_whole(self, node: ast.expr, scope: _Scope) -> ast.expr:
        return cast(ast.expr, _Renamed(self, scope, None).visit(copy.deepcopy(node)))

    def _value(self, path: Sequence[str]) -> Any:
        variable, *attributes = path
        if variable in self.values:
            made = Inlined(self._frames[0].f_code, 0, self.values, {})
            return parameter_reads.value_of(cast(FrameType, made), variable, *attributes)
        return parameter_reads.value_of(self._frames[0], variable, *attributes)


class _Renamed(ast.NodeTransformer):
    """An expression of a function as it is in the whole; ``written``: returns what stands for a call."""

    def __init__(self, inliner: _Inliner, scope: _Scope, written: Callable[[ast.Call], ast.expr | None] | None) -> None:
        self._inliner, self._scope, self._written = inliner, scope, written

    def visit_Name(self, node: ast.Name) -> ast.AST:  # ast's name
        """A variable."""
        made = copy.deepcopy(self._inliner.variable(node.id, self._scope))
        if isinstance(node.ctx, ast.Store | ast.Del):
            made = ast.Name(made.id if isinstance(made, ast.Name) else node.id, node.ctx)
        return ast.copy_location(made, node)

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:  # ast's name
        """Of an object; a property is called."""
        original = copy.deepcopy(node)
        made = self._inliner.attribute(cast(ast.Attribute, self.generic_visit(node)))
        if self._written is not None and isinstance(made, ast.Attribute) and self._inliner.is_property(made):
            made = self._written(ast.copy_location(ast.Call(original, [], []), node)) or made
        return ast.copy_location(made, node)

    def visit_Call(self, node: ast.Call) -> ast.AST:  # ast's name
        """Its function and arguments first."""
        original = copy.deepcopy(node)
        made = cast(ast.Call, self.generic_visit(node))
        made.args = [each for one in made.args for each in self._unstarred(one, original)]
        if self._written is None:
            return made
        call = ast.copy_location(ast.Call(original.func, made.args, made.keywords), original)
        stands = self._written(call)
        if stands is None:
            return _located(made, call)
        return stands

    def _unstarred(self, one: ast.expr, _original: ast.Call) -> list[ast.expr]:
        name = _name(one.value).removesuffix(self._scope.suffix) if isinstance(one, ast.Starred) else ""
        its = self._scope.varargs.get(name) if name else None
        return [one] if its is None else [copy.deepcopy(each) for each in its]

    def _stays(self, node: ast.AST) -> ast.AST:
        """Calls in it do."""
        return _Renamed(self._inliner, self._scope, None).generic_visit(node)

    visit_Lambda = visit_ListComp = visit_SetComp = visit_DictComp = visit_GeneratorExp = _stays  # noqa: N815  # ast's names


def _located(made: ast.Call, call: ast.Call) -> ast.Call:
    """The running one keeps its mark."""
    if call.lineno == _MARK:
        for one in ast.walk(made):
            _set_line(one, _MARK)
    return made


def _set_in_loops(tree: ast.Module) -> set[str]:
    """Variables that have other objects in each turn."""
    loops = (one for one in ast.walk(tree) if isinstance(one, ast.For | ast.While))
    nodes = (one for loop in loops for one in ast.walk(loop))
    return {one.id for one in nodes if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)}


def _with_else(body: Sequence[ast.stmt]) -> list[ast.stmt]:
    """What follows an early return is its ``else``."""
    for at, one in enumerate(body):
        if isinstance(one, ast.If) and not one.orelse and isinstance(one.body[-1], ast.Return):
            rest = _with_else(body[at + 1 :])
            return [*body[:at], ast.copy_location(ast.If(one.test, one.body, rest), one)]
    return list(body)


def _set_line(node: ast.AST, line: int) -> None:
    if isinstance(node, ast.expr | ast.stmt | ast.excepthandler | ast.arg | ast.keyword | ast.alias):
        node.lineno = node.end_lineno = line
        node.col_offset = node.end_col_offset = 0


def _is_object(value: object) -> bool:
    """Whether it is one that stays."""
    kinds = (nn.Module, torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler)
    return isinstance(value, kinds) or is_of_the_script(type(value)) or type(value).__module__ == loop_code.SESSION


def _may_be_written(code: CodeType) -> bool:
    return not code.co_flags & _NO_FUNCTIONS and code.co_name != "<lambda>"


def _place(node: ast.Call) -> tuple[int, int]:
    """Where it ends. (Where it begins depends on the version of Python.)"""
    return node.end_lineno or 0, node.end_col_offset or 0


def _running_place(frame: FrameType) -> tuple[int, int]:
    _, line, _, column = list(frame.f_code.co_positions())[frame.f_lasti // 2]
    return line or 0, column or 0


def _path(node: ast.expr) -> list[str]:
    """Of a variable, or an attribute of an object in one; empty: it is something else."""
    if isinstance(node, ast.Name):
        return [node.id]
    before = _path(node.value) if isinstance(node, ast.Attribute) else []
    return [*before, cast(ast.Attribute, node).attr] if before else []


def _name(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else ""


def _is_getattr(call: ast.Call) -> bool:
    is_named = len(call.args) >= 2 and isinstance(call.args[1], ast.Constant) and isinstance(call.args[1].value, str)
    return is_named and _name(call.func) == getattr.__name__


def _assigned(definition: ast.FunctionDef) -> set[str]:
    """The variables that a function sets."""
    nodes = [one for each in definition.body for one in ast.walk(each)]
    others = {name for one in nodes if isinstance(one, ast.Global | ast.Nonlocal) for name in one.names}
    found = {one.id for one in nodes if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store | ast.Del)}
    found |= {one.name for one in nodes if isinstance(one, ast.FunctionDef | ast.ClassDef)}
    return found - others
