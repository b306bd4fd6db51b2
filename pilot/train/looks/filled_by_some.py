"""Tells of lists, dicts and counts with nothing in them at an epoch's beginning, in which only some batches put
something (``if i % 10 == 0: losses.append(...)``), and of which the epoch's end needs some (``losses[0]``, ``total /
len(losses)``). A process that enters the epoch after these batches has nothing there, and fails. (It has the epoch's
last batch at least, whose ``session.step`` may return False.)
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dis import Instruction
from types import FrameType

from pilot.train.script import attribute_code, loop_code, refusal
from pilot.train.script.bytecode import between, instructions
from pilot.train.script.needing_some import needs_some
from pilot.train.script.statements import (
    ADDS,
    RETURNS,
    begin_of,
    items_in,
    loop_at,
    may_pass_by,
    path_at,
    statements_in,
    uses_in,
)
from pilot.train.script.step_uses import end_of

_TABLES = (list, dict, set, deque)
_FILLS = {*ADDS, "insert", "appendleft", "extendleft"}
_FILLED = {"LIST_EXTEND", "LIST_APPEND", "SET_UPDATE", "SET_ADD", "DICT_UPDATE", "MAP_ADD"}
_REORDERS = {"SWAP", "UNPACK_SEQUENCE"}
_BY_BATCH = {"step", "steps", "samples"}
"""What of the session is another thing in each batch."""


class FilledBySome:
    """Looks for one session."""

    def __init__(self) -> None:
        self._told = False

    def look(self, frames: Sequence[FrameType], head: int) -> None:
        """Tell once. ``frames``: the running functions, from the one on with the session's loop over epochs, which
        begins at ``head``.
        """
        loop = None if self._told else loop_code.inner_loop(frames, head)
        if loop is None or not loop_at(loop[0].f_code, loop[1]) or not loop_at(frames[0].f_code, head):
            return
        level = next(number for number, one in enumerate(frames) if one is loop[0])
        start, begin = 0 if level else head, loop[1]
        found = _filled_by_some(frames[level:], start, begin)
        names = [name for name in found if _is_needed(frames[: level + 1], head, begin, name)]
        if names:
            self._told = True
            refusal.note(
                f"the script needs at an epoch's end what only some of its batches put in {', '.join(names)}, where the"
                " epoch begins with nothing; a node that joins, or a run that resumes, after these batches has nothing"
                f" there, and fails: ask whether there is something (if {names[0]}:), or put something there in each"
                " batch, whatever session.step returns"
            )


def _filled_by_some(frames: Sequence[FrameType], start: int, begin: int) -> list[str]:
    """Variables, and attributes of objects in them, that are set between ``start`` and the loop which begins at
    ``begin`` of the first function. ``frames``: from that one on.
    """
    frame, loop = frames[0], loop_at(frames[0].f_code, begin)
    varies = _Varies(frames, loop)
    before = loop_code.statements_between(frame.f_code, start, begin)
    names = [name for name in dict.fromkeys(name for one in before for name in one.sets) if _is_one(frame, name)]
    filled = {name: {*_fills(frame, loop, name)} for name in names}
    some = [name for name, places in filled.items() if places and may_pass_by(frame.f_code, loop, places, varies)]
    return [name for name in some if _begins_with_nothing(frame, start, begin, name)]


def _is_one(frame: FrameType, name: str) -> bool:
    value = loop_code.value_of(frame, *name.split("."))
    return isinstance(value, _TABLES) or type(value) in (int, float)


class _Varies:
    """Whether a test depends on the batch: on what the loop sets, in its function or in those that run in it, or on
    the session's steps. ``frames``: the running functions, from the one with this loop on.
    """

    def __init__(self, frames: Sequence[FrameType], loop: Sequence[Instruction]) -> None:
        self._frame = frames[0]
        self._statements = statements_in(loop)
        self._changed = {name for one in self._statements for name in one.sets}
        within = (one for frame in frames[1:] for one in instructions(frame.f_code))
        self._attributes = attribute_code.attributes_stored(within)

    def __call__(self, jump: Instruction) -> bool:
        begin = next(one.begin for one in self._statements if jump.offset <= one.end)
        test = statements_in(between(self._frame.f_code, begin, jump.offset))
        paths = {path for one in test for path in one.reads}
        return not paths.isdisjoint(self._changed) or any(map(self._is_changed, paths))

    def _is_changed(self, path: str) -> bool:
        *owner, name = path.split(".")
        is_of_batch = name in _BY_BATCH and loop_code.is_session(self._frame, owner)
        return is_of_batch or (bool(owner) and name in self._attributes)


def _fills(frame: FrameType, loop: Sequence[Instruction], name: str) -> Iterator[int]:
    """The instructions of a loop that put something there."""
    for number, one in enumerate(loop):
        is_method = one.opname == "LOAD_ATTR" and one.argval in _FILLS
        if is_method and ".".join(path_at(loop, number)) == f"{name}.{one.argval}":
            yield one.offset
        if one.opname == "STORE_ATTR" and ".".join(path_at(loop, number)) == name:
            yield one.offset
    yield from (where for where, use, stored in uses_in(loop) if use == "STORE" and stored == name)
    its = (one.where for one in items_in(frame.f_code) if one.holder == name and one.is_changed)
    yield from (where for where in its if loop[0].offset <= where <= loop[-1].offset)


def _begins_with_nothing(frame: FrameType, start: int, begin: int, name: str) -> bool:
    """Whether the last statement between these that sets it makes an empty one, or 0."""
    last = [one for one in loop_code.statements_between(frame.f_code, start, begin) if name in one.sets][-1]
    part, constants = _set_to(between(frame.f_code, last.begin, last.end + 1), name)
    if not isinstance(value := loop_code.value_of(frame, *name.split(".")), _TABLES):
        return 0 in constants
    kinds = {kind.__name__ for kind in type(value).__mro__}
    is_made = any(one.opname.startswith("BUILD_") and one.arg == 0 for one in part)
    is_called = any(path.rpartition(".")[2] in kinds for one in statements_in(part) for path in one.reads)
    return (is_made or is_called) and not any(one.opname in _FILLED for one in part)


def _set_to(part: Sequence[Instruction], name: str) -> tuple[Sequence[Instruction], list[object]]:
    """What a statement computes to set this one of its variables, and the constants in that."""
    stored = [stored for _, use, stored in uses_in(part) if use == "STORE"]
    names = {one.opname for one in part}
    if len(stored) > 1 and name in stored and "COPY" not in names:  # a, b = ..., and not a = b = ...
        if not names & _REORDERS:
            stored.reverse()  # each is taken from the stack's end
        which = stored.index(name)
        values = [one for one in part if not one.opname.startswith(("STORE_", "SWAP", "BUILD_TUPLE", "UNPACK"))]
        if len(values) == 1 and isinstance(values[0].argval, tuple) and len(values[0].argval) == len(stored):
            return [], [values[0].argval[which]]
        for _ in stored[which + 1 :]:
            values = values[: begin_of(values, len(values) - 1)]
        part = values[begin_of(values, len(values) - 1) :]
    return part, [one.argval for one in part if one.opname == "LOAD_CONST"]


def _is_needed(frames: Sequence[FrameType], head: int, begin: int, name: str) -> bool:
    """After the loop that begins at ``begin`` of the last of these functions; or, as it returns it, in those that call
    it.
    """
    is_count = not isinstance(loop_code.value_of(frames[-1], *name.split(".")), _TABLES)
    after = end_of(frames[-1].f_code, begin)
    for number in range(len(frames) - 1, -1, -1):
        code = frames[number].f_code
        last = len(code.co_code) if number else end_of(code, head)
        if needs_some(code, after, last, name, is_count=is_count):
            return True
        if not number or not (name := _returned_as(frames[number], frames[number - 1], after, last, name)):
            return False
        after = loop_code.running_statement(frames[number - 1]).end + 1
    return False


def _returned_as(frame: FrameType, caller: FrameType, begin: int, end: int, name: str) -> str:
    """The variable of ``caller`` that gets it, as a whole; empty: none."""
    for one in loop_code.statements_between(frame.f_code, begin, end):
        part = between(frame.f_code, one.begin, one.end + 1)
        if part[-1].opname in RETURNS and name in one.reads:
            names = _whole(part)
            setting = loop_code.running_statement(caller)
            stored = [
                variable
                for _, use, variable in uses_in(between(caller.f_code, setting.begin, setting.end + 1))
                if use == "STORE"
            ]
            return stored[names.index(name)] if name in names and len(stored) == len(names) else ""
    return ""


def _whole(part: Sequence[Instruction]) -> list[str]:
    """The variables that a statement returns as they are; none if it computes anything."""
    plain = all(one.opname.startswith(("LOAD_", "BUILD_TUPLE", "RETURN_", "RESUME", "SWAP")) for one in part)
    return [variable for _, use, variable in uses_in(part) if use == "LOAD"] if plain else []
