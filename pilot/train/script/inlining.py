"""Writes the functions that the script's loop calls where they are called, in its source; see
:mod:`pilot.train.script.inlined`.
"""

from __future__ import annotations

import ast
import copy
import inspect
from collections.abc import Collection, Iterator, Sequence
from types import CodeType, FrameType, FunctionType, MethodType
from typing import cast

from torch import nn

from pilot.train.script.objects import is_of_the_script
from pilot.train.script.refusal import DOT, is_of_a_library
from pilot.train.script.renaming import MARK, Comprehension, Renamed, Scope
from pilot.train.script.source import (
    assigned,
    copied,
    function_in,
    path_of,
    place_of,
    running_place,
    set_line,
    tree_of,
    with_attribute,
    with_else,
)
from pilot.train.script.whole_names import WholeNames, is_object

_DEPTH = 6
_MOST = 40
"""How deep calls are followed, and how many."""
_MOST_OF_NAME = 60
_COMPREHENSIONS = {"<genexpr>", "<listcomp>", "<setcomp>"}
_OF_LAYERS = {"__call__", "forward"}
"""What runs a layer is read by its own looks."""
_NO_FUNCTIONS = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


class Inliner:
    """``frames``: the running functions; ``replaced``: see :class:`WholeNames`. ``calls``: how many were written in
    place.
    """

    def __init__(self, frames: Sequence[FrameType], replaced: Collection[str] = ()) -> None:
        self._frames = list(frames)
        self.names = WholeNames(frames[0], replaced)
        self.calls = 0
        self._running: list[CodeType] = []
        self._written = set[str]()

    def whole(self) -> ast.Module:
        """The first function, or the module that it is."""
        first = self._frames[0]
        tree = tree_of(first.f_code)
        scope = Scope({}, "", None, first)
        if first.f_code.co_name == "<module>":
            return ast.Module(self._body(tree.body, scope, 0), [])
        function = copy.copy(function_in(tree))
        function.decorator_list = []
        function.body = self._body(function.body, scope, 0)
        for name in first.f_code.co_freevars:  # which it has no function around it to have
            self.names.values.setdefault(name, first.f_locals.get(name))
        return ast.Module([function], [])

    # --- statements --------------------------------------------------------------------------------------------------

    def _body(self, body: Sequence[ast.stmt], scope: Scope, depth: int) -> list[ast.stmt]:
        return [made for one in body for made in self._statement(one, scope, depth)] or [ast.Pass()]

    def _statement(self, one: ast.stmt, scope: Scope, depth: int) -> Iterator[ast.stmt]:
        if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield cast(ast.stmt, Renamed(self.names, scope, None).visit(copied(one)))
            return
        if isinstance(one, ast.Global | ast.Nonlocal):
            if scope.is_first:
                yield copy.copy(one)
            return
        if isinstance(one, ast.For) and (turns := self._turns(one, scope)):
            for names in turns:
                within = copy.copy(scope)
                within.names = scope.names | names
                yield from self._body(one.body, within, depth)
            return
        if not scope.is_first and isinstance(one, ast.Assign) and self._is_name(one, scope):
            return
        before: list[ast.stmt] = []
        for item in one.items if isinstance(one, ast.With) else ():
            call = ast.Call(ast.Attribute(item.context_expr, "__enter__", ast.Load()), [], [])
            self._expression(ast.copy_location(call, item.context_expr), scope, depth, before)
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
        if isinstance(made, ast.Return) and not scope.is_first:
            yield from before
            if made.value is not None:
                yield ast.Assign([ast.Name(scope.returned, ast.Store())], made.value, lineno=one.lineno)
            return
        if not scope.is_first:
            self._take_item(made)
        yield from before
        if not (isinstance(made, ast.Expr) and isinstance(made.value, ast.Name) and before):  # what it returned
            yield made

    def _is_name(self, one: ast.Assign, scope: Scope) -> bool:
        """Whether it only gives another name to an object, which has one, to a method or to ``session.state``."""
        made = self._in_whole(one.value, scope) if isinstance(one.value, ast.Name | ast.Attribute | ast.Call) else None
        if isinstance(made, ast.Call):
            made = with_attribute(made)
        path = path_of(made) if made is not None else []
        target = one.targets[0] if len(one.targets) == 1 else None
        if made is None or not path or not isinstance(target, ast.Name):
            return False
        if not (self.names.is_state(path) or is_object(self.names.value(path)) or self.names.is_method(path)):
            return False
        scope.names[target.id] = made
        return True

    def _handler(self, one: ast.ExceptHandler, scope: Scope, depth: int) -> ast.ExceptHandler:
        made = copy.copy(one)
        made.body = self._body(one.body, scope, depth)
        return made

    def _expression(self, value: ast.AST, scope: Scope, depth: int, before: list[ast.stmt]) -> ast.AST:
        renamed = Renamed(self.names, scope, lambda one: self._written_before(one, scope, depth, before))
        return cast(ast.AST, renamed.visit(copied(value)))

    def _turns(self, loop: ast.For, scope: Scope) -> list[dict[str, ast.expr]]:
        """What a loop's variables are in each of its turns, if it goes through a list of the script's objects, or of
        functions (also of tuples with one), and uses them: calls handlers.
        """
        targets = loop.target.elts if isinstance(loop.target, ast.Tuple) else [loop.target]
        names = [one.id for one in targets if isinstance(one, ast.Name)]
        nodes = [one for each in loop.body for one in ast.walk(each)]
        uses = any(isinstance(one, ast.Name) and one.id in names for one in nodes)
        leaves = any(isinstance(one, ast.Break | ast.Continue) for one in nodes)
        name, items = self.names.items(self._in_whole(loop.iter, scope)) if uses and not leaves else ("", [])
        rows = [one if isinstance(loop.target, ast.Tuple) and isinstance(one, list | tuple) else [one] for one in items]
        if not all(len(row) == len(names) == len(targets) and any(map(_is_followed, row)) for row in rows):
            return []
        return [
            {its: self.names.named(f"{name}[{number}]" + f"'s {its}" * (len(names) > 1), value) for its, value in turn}
            for number, turn in enumerate(zip(names, row, strict=True) for row in rows)
        ]

    def _written_before(
        self, one: ast.Call | Comprehension, scope: Scope, depth: int, before: list[ast.stmt]
    ) -> ast.expr | None:
        """What stands for it, when what it runs was written before; None: it stays."""
        if isinstance(one, ast.Call):
            return self._call(one, scope, depth, before)
        return self._comprehension(one, scope, depth, before)

    def _comprehension(self, one: Comprehension, scope: Scope, depth: int, before: list[ast.stmt]) -> ast.expr | None:
        """The one that is running, as a loop that fills a list."""
        frame = self._comprehension_in(scope.frame)
        if frame is None or not any(_is_running(each, frame) for each in ast.walk(one)):
            return None
        filled = f"{ast.unparse(one):.{_MOST_OF_NAME}}".replace(".", DOT)
        added = ast.Call(ast.Attribute(ast.Name(filled, ast.Load()), "append", ast.Load()), [one.elt], [])
        set_line(added, 1)  # where nothing runs
        body: ast.stmt = ast.Expr(added)
        for each in reversed(one.generators):
            for test in reversed(each.ifs):
                body = ast.If(test, [body], [])
            body = ast.For(each.target, each.iter, [body], [])
        within = copy.copy(scope)
        within.frame = frame
        targets = [each for its in one.generators for each in ast.walk(its.target)]
        own = {each.id for each in targets if isinstance(each, ast.Name)}
        within.names = scope.names | {name: ast.Name(f"{name}{scope.suffix}", ast.Load()) for name in own}
        self._take_values(frame, within)
        before.append(ast.Assign([ast.Name(filled, ast.Store())], ast.List([], ast.Load()), lineno=one.lineno))
        before += self._body([body], within, depth)
        self.calls += 1
        return ast.Name(filled, ast.Load())

    def _comprehension_in(self, frame: FrameType | None) -> FrameType | None:
        """The function in which this one's comprehension runs: another one, or (from Python 3.12 on, lists) itself."""
        number = next((at for at, one in enumerate(self._frames) if one is frame), len(self._frames))
        then = self._frames[number + 1 : number + 2]
        return then[0] if then and then[0].f_code.co_name in _COMPREHENSIONS else frame

    # --- calls -------------------------------------------------------------------------------------------------------

    def _call(self, call: ast.Call, scope: Scope, depth: int, before: list[ast.stmt]) -> ast.expr | None:
        """What stands for it, when what it runs was written before; None: it stays."""
        then = self._running_in(call, scope)
        if then is self._frames[-1] and scope.frame is then:
            for one in ast.walk(call):
                set_line(one, MARK)
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
            definition = function_in(tree_of(code))
        except (OSError, TypeError, SyntaxError, IndexError):
            return None
        self.calls += 1
        self._running.append(code)
        suffix = f" in {code.co_name}()" + (f" ({self.calls})" if code.co_name in self._written else "")
        self._written.add(code.co_name)
        within = Scope({}, suffix, function, then, suffix.removeprefix(" in "))
        self._bind(call, definition, owner, within, before)
        if then is not None:
            self._take_values(then, within)
        before += self._body(with_else(definition.body), within, depth + 1)
        self._running.pop()
        return ast.Name(within.returned, ast.Load())

    def _running_in(self, call: ast.Call, scope: Scope) -> FrameType | None:
        """The function that this call runs; of the innermost one itself."""
        frame = scope.frame
        if frame is None or not _is_running(call, frame):
            return None
        number = next(at for at, one in enumerate(self._frames) if one is frame)
        then = self._frames[min(number + 1, len(self._frames) - 1)]
        return None if then.f_code.co_name in _COMPREHENSIONS and then is not frame else then

    def _function(self, call: ast.Call, scope: Scope) -> tuple[FunctionType | None, ast.expr | None]:
        """The script's own that is called, and whose method it is."""
        if found := self._of_base(call.func, scope):
            return found
        target = self._in_whole(call.func, scope)
        if isinstance(target, ast.Call) and (asked := with_attribute(target)):
            target = self.names.attribute(asked)
        name, value = self.names.held(target)
        if isinstance(target, ast.Subscript) and value is not None:
            target = self.names.named(name, value)
        path = path_of(target)
        if isinstance(value, MethodType) and not isinstance(value.__self__, nn.Module):
            function = inspect.unwrap(value.__func__)
            owner: ast.expr | None = self.names.named(f"{name}'s object", value.__self__)
        elif isinstance(value, FunctionType):
            function, owner = inspect.unwrap(value), None
        else:
            held = value if value is not None else (self.names.value(path[:-1]) if path[1:] else None)
            name = "__call__" if value is not None else (path[-1] if path else "")
            function = inspect.getattr_static(type(held), name, None) if held is not None else None
            function = function.fget if isinstance(function, property) else function
            function = inspect.unwrap(function) if isinstance(function, FunctionType) else function
            owner = target if value is not None else cast(ast.Attribute, target).value if path[1:] else None
            if isinstance(held, type) or (isinstance(held, nn.Module) and name in _OF_LAYERS):
                return None, None
        is_own = isinstance(function, FunctionType) and not is_of_a_library(function.__code__.co_filename)
        return (function, owner) if is_own else (None, None)

    def _of_base(self, target: ast.expr, scope: Scope) -> tuple[FunctionType, ast.expr] | None:
        """The method of a base class that ``super()`` has, and whose it is."""
        code = scope.function.__code__ if scope.function is not None else scope.frame.f_code if scope.frame else None
        match target:
            case ast.Attribute(ast.Call(ast.Name("super"), []), method) if code is not None and code.co_argcount:
                owner = self.names.variable(code.co_varnames[0], scope)
                order, within = type(self.names.held(owner)[1]).__mro__, scope.value_around("__class__")
                bases = order[order.index(within) + 1 :] if isinstance(within, type) and within in order else ()
                function = next((vars(base)[method] for base in bases if method in vars(base)), None)
                function = inspect.unwrap(function) if isinstance(function, FunctionType) else None
                if function is not None and not is_of_a_library(function.__code__.co_filename):
                    return function, owner
        return None

    def _bind(
        self,
        call: ast.Call,
        definition: ast.FunctionDef,
        owner: ast.expr | None,
        within: Scope,
        before: list[ast.stmt],
    ) -> None:
        """Its parameters, and its own variables."""
        arguments = definition.args
        own = assigned(definition)
        given: list[ast.expr] = [*call.args] if owner is None else [owner, *call.args]
        certain = next((at for at, one in enumerate(given) if isinstance(one, ast.Starred)), len(given))
        parameters = [*arguments.posonlyargs, *arguments.args]
        bound = {one.arg: value for one, value in zip(parameters, given[:certain], strict=False)}
        bound |= {one.arg: one.value for one in call.keywords if one.arg}
        others = (arguments.vararg, arguments.kwarg)
        known = {one.arg for one in (*parameters, *arguments.kwonlyargs, *filter(None, others))}
        if arguments.vararg:
            within.varargs[arguments.vararg.arg] = given[len(parameters) :]
        if arguments.kwarg:
            within.keywords[arguments.kwarg.arg] = [one for one in call.keywords if one.arg not in known]
        defaults = zip(reversed(parameters), reversed(arguments.defaults), strict=False)
        bound = {one.arg: default for one, default in defaults if isinstance(default, ast.Constant)} | bound
        for name in own | known:
            within.names[name] = ast.Name(f"{name}{within.suffix}", ast.Load())
        for name, value in bound.items():
            if name in known and name not in own and (path_of(value) or isinstance(value, ast.Constant)):
                within.names[name] = value
            elif name in known:
                target = ast.Name(f"{name}{within.suffix}", ast.Store())
                before.append(ast.Assign([target], value, lineno=definition.lineno))
                self._take_item(before[-1])

    def _take_values(self, frame: FrameType, within: Scope) -> None:
        for name, value in frame.f_locals.items():
            its = within.names.get(name)
            if isinstance(its, ast.Name):
                self.names.values.setdefault(its.id, value)

    def _take_item(self, one: ast.stmt) -> None:
        """The value of a variable of a function that has returned, if that is an item of ``session.state``, or one of
        an optimizer's groups.
        """
        match one:
            case ast.For(ast.Name(name), held):
                groups = self.names.value(path) if (path := path_of(held)) else None
                if isinstance(groups, list) and groups and isinstance(groups[0], dict) and "params" in groups[0]:
                    self.names.values.setdefault(name, groups[0])
            case ast.Assign([ast.Name(name)], ast.Subscript(holder, ast.Constant(key))):
                if self.names.is_state(path := path_of(holder)):
                    self.names.values.setdefault(name, self.names.value(path[:-1]).state.get(key))

    def _in_whole(self, node: ast.expr, scope: Scope) -> ast.expr:
        return cast(ast.expr, Renamed(self.names, scope, None).visit(copied(node)))


def _is_followed(value: object) -> bool:
    """Whether its methods, or it, may be written where they are called."""
    if isinstance(value, FunctionType | MethodType):
        code = getattr(value, "__code__", None)  # a method may be of something that is no function
        return isinstance(code, CodeType) and not is_of_a_library(code.co_filename)
    return is_of_the_script(type(value)) and not isinstance(value, nn.Module)


def _is_running(node: ast.AST, frame: FrameType) -> bool:
    """Whether it is the call that the function runs."""
    return isinstance(node, ast.Call) and place_of(node) == running_place(frame)


def _may_be_written(code: CodeType) -> bool:
    return not code.co_flags & _NO_FUNCTIONS and code.co_name != "<lambda>"
