"""The script's loop as one function: the functions of its own that it calls (methods of a trainer, callbacks in a list)
are written where they are called, so that who reads the loop's code reads theirs, too.

Made from the source. Variables of such a function get other names, its arguments are those of the call, and what it
returns is a variable, as are attributes of the script's objects (``self.count``: each object has one name, by which it
was seen first). What cannot be written so (generators, calls in comprehensions that are not running) stays a call.
"""

from __future__ import annotations

import ast
import warnings
from collections.abc import Mapping, Sequence
from types import CodeType, FrameType
from typing import Any, cast

from pilot.train.script import loop_code
from pilot.train.script.bytecode import instructions, running_at
from pilot.train.script.dict_items import as_variables
from pilot.train.script.inlining import Inliner
from pilot.train.script.renaming import MARK
from pilot.train.script.source import set_in_loops, set_line
from pilot.train.script.whole_names import Inlined


def inlined(frames: Sequence[FrameType], head: int, state: Mapping[str, Any]) -> tuple[FrameType, int] | None:
    """The first of these running functions with all that it calls, and where its loop begins; None: it calls nothing of
    the script's and uses no object of its, or cannot be read.

    Parameters
    ----------
    frames : the running functions, from the one with the session's loop on to the one that steps
    head : where that loop begins
    state : ``session.state``
    """
    try:
        made = Inliner(frames)
        tree = made.whole()
        if replaced := made.names.owners & set_in_loops(tree):
            made = Inliner(frames, replaced)
            tree = made.whole()
        if not (made.calls or made.names.owners):
            return None
        values = {**frames[0].f_locals, **made.names.values}
        values |= dict(as_variables(tree, values, state))
        code = _compiled(tree, frames[0].f_code)
    except Exception:  # what cannot be read (there is no source, or another one) is not told of
        return None
    around = loop_code.heads(frames[0].f_code, running_at(frames[0]))
    if head not in around:
        return None
    places = [number for number, place in enumerate(code.co_positions()) if place[0] == MARK]
    at = max((one.offset for one in instructions(code) if one.offset // 2 in places), default=None)
    outer = around.index(head)
    heads = loop_code.heads(code, at) if at is not None else []
    if at is None or len(heads) <= outer:
        return None
    return cast(FrameType, Inlined(code, at, values, frames[0].f_globals)), heads[outer]


def _compiled(tree: ast.Module, like: CodeType) -> CodeType:
    for one in ast.walk(tree):
        set_line(one, MARK if getattr(one, "lineno", 0) == MARK else 1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of arguments that are None, in parts that do not run
        whole = compile(ast.fix_missing_locations(tree), like.co_filename, "exec")
    its = (one for one in whole.co_consts if isinstance(one, CodeType) and one.co_name == like.co_name)
    return next(its, whole)
