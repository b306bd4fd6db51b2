"""Variables that there were not before the loop, and that only some of its turns set for others, which may have none: a
process that joins, or a run that resumes, begins with another turn.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Iterator, Sequence
from types import CodeType, FrameType
from typing import Any

from torch import nn

from pilot.train.looks.marks import ARRAYS, Place
from pilot.train.script import loop_code
from pilot.train.script.bytecode import running_at
from pilot.train.script.objects import WITH_ITEMS, inner, is_of_the_script

_Reference = Callable[[], Any]


class LeftByTurns:
    """Looks at the same functions at several times. ``is_new``: whether there was no such variable before the loop."""

    def __init__(self, is_new: Callable[[Place], bool]) -> None:
        self._is_new = is_new
        self._by_some: dict[str, _Reference] = {}
        self._by_another: dict[str, _Reference] = {}

    def by_some(self, frames: Sequence[FrameType], head: int, known: Collection[int]) -> Iterator[Place]:
        """Those that an epoch's end sets, or a first batch (``if i == 0``). These are the same as when it looked
        before. A number counts if each turn reads it: scripts print others in the turns that set them.

        Parameters
        ----------
        frames : the running functions, from the one with the session's loop on
        head : where that loop begins
        known : what the session has
        """
        loop = loop_code.inner_loop(frames, head)
        if loop is None:  # between two passes: the next one may use what this one has left
            return
        (frame, begin), code = loop, loop[0].f_code
        outer = head if frame is frames[0] else begin
        at_end = loop_code.left_at_end(code, outer, begin)
        found: dict[str, _Reference] = {}
        names = loop_code.may_be_kept(code, outer, begin).difference(code.co_varnames[: code.co_argcount])
        for name in [one for one in names if one in frame.f_locals and self._is_new((_space(frame), one))]:
            value = frame.f_locals[name]
            counts = type(value) is not float or loop_code.is_always_read(code, begin, name)
            refers = None if _is_constant(value, code) or isinstance(value, WITH_ITEMS) else _reference(value)
            if counts and refers is not None and id(value) not in known:
                found[name] = refers
            if name in at_end or (name in found and name in self._by_some and self._by_some[name]() is value):
                yield _space(frame), name
        self._by_some = found

    def by_another(self, frames: Sequence[FrameType], head: int, *, by_epoch: bool) -> Iterator[Place]:
        """Those that this turn (an epoch, an iteration) uses as another one's beginning has set them (``if epoch % 2 ==
        0``).
        """
        loop = loop_code.inner_loop(frames, head)
        if not frames or (loop is None and by_epoch):
            return
        frame, found = frames[0], {}
        begin = loop[1] if loop is not None and loop[0] is frame else running_at(frame)
        for name in sorted(loop_code.needed_from_before(frame.f_code, head, begin)):
            value, place = frame.f_locals.get(name), (_space(frame), name)
            refers = _reference(value) if self._is_new(place) and not _is_constant(value, frame.f_code) else None
            if refers is not None:
                found[name] = refers
                if name in self._by_another and self._by_another[name]() is refers():
                    yield place
        self._by_another = found


def _space(frame: FrameType) -> int:
    """The number of what has its variables."""
    return id(frame.f_globals if frame.f_locals is frame.f_globals else frame)


def _reference(value: Any) -> _Reference | None:
    """To something by which this value is known again, without keeping it; of a list the first that was made in it."""
    if type(value) is float:
        return lambda: value
    if isinstance(value, WITH_ITEMS):
        return next((found for _, one in inner(value) if (found := _reference(one)) is not None), None)
    return weakref.ref(value) if _is_made(value) else None


def _is_constant(value: Any, code: CodeType) -> bool:
    return any(value is one for one in code.co_consts)


def _is_made(value: Any) -> bool:
    """Computed, or copied: no number, which may be a constant, and nothing of a library's."""
    return isinstance(value, (*ARRAYS, nn.Module)) or is_of_the_script(type(value))
