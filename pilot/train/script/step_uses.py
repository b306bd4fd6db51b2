"""What a script's steps compute with, read from its code: of its statements those from which its loss comes, or that
affect its training otherwise (:mod:`pilot.train.script.steering`), and the keys of ``session.state`` that these read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from dis import Instruction
from functools import cache, cached_property
from types import CodeType, FrameType, MethodType

from pilot.train.script import loop_code
from pilot.train.script.bytecode import between, instructions, running_at
from pilot.train.script.objects import own_code
from pilot.train.script.statements import Item, Statement, items_in, loop_at, statements_in
from pilot.train.script.steering import steers

_STATE = "state"
_OPTIONS = {"lr", "weight_decay"}
_CALLED = ("forward", "__call__")


@dataclass(frozen=True, eq=False)
class RunningStatement:
    """A statement of one of the running functions, the items that it uses, and the next function if it calls that.
    ``user``: ``session.state``.
    """

    frame: FrameType
    statement: Statement
    items: Sequence[Item]
    calls: CodeType | None
    user: Mapping[str, object]

    @cached_property
    def keys_read(self) -> set[str]:
        """Of ``session.state``, also by functions that it may call."""
        found = {one.key for one in self.items if not one.is_changed and self._is_state(one.holder)}
        return (found | {one.key for code in self.called for one in items_in(code) if _may_be_state(one)}) - {""}

    @cached_property
    def keys_changed(self) -> set[str]:
        """Of ``session.state``."""
        return {one.key for one in self.items if one.is_changed and self._is_state(one.holder)} - {""}

    @cached_property
    def filled(self) -> set[str]:
        """Other variables, and attributes of objects in them, of which it changes items."""
        return {one.holder for one in self.items if one.is_changed and not self._is_state(one.holder)} - {""}

    @cached_property
    def is_of_step(self) -> bool:
        """Whether it computes a gradient, or affects training otherwise; or calls what steps."""
        one = self.statement
        is_loss = self.calls is not None or "backward" in one.attributes
        return is_loss or steers(one, self.frame) or any(map(_sets_options, self.called))

    @cached_property
    def called(self) -> list[CodeType]:
        """The script's own functions that it may call, apart from the running one."""
        found = (code for path in self.statement.reads for code in _functions_of(self.frame, path.split(".")))
        return [code for code in found if code is not self.calls]

    def _is_state(self, holder: str) -> bool:
        *owner, name = holder.split(".")
        is_ours = name == _STATE and loop_code.is_session(self.frame, owner)
        return is_ours or loop_code.value_of(self.frame, *owner, name) is self.user


def _may_be_state(item: Item) -> bool:
    return not item.is_changed and item.holder.rpartition(".")[2] == _STATE


def _functions_of(frame: FrameType, path: list[str]) -> Iterator[CodeType]:
    value, owner = loop_code.value_of(frame, *path), loop_code.value_of(frame, *path[:-1]) if path[1:] else None
    kind = type(value)
    found = [getattr(kind, name, None) for name in _CALLED if not issubclass(kind, type)]
    found += [value.__func__ if isinstance(value, MethodType) else value, getattr(type(owner), path[-1], None)]
    for one in found:
        if (code := own_code(one)) is not None:
            yield code


def parts_between(
    frame: FrameType, begin: int, end: int, then: FrameType | None, user: Mapping[str, object]
) -> list[RunningStatement]:
    """The statements between two instructions. ``then``: the function that it calls, if that is running."""
    items = [one for one in items_in(frame.f_code) if begin <= one.where < end]
    call = running_at(frame) if then is not None else -1
    found = []
    for one in _statements(frame.f_code, begin, end, call):
        its = [item for item in items if one.begin <= item.where <= one.end]
        calls = then.f_code if then is not None and one.begin <= call <= one.end else None
        found.append(RunningStatement(frame, one, its, calls, user))
    return found


@cache
def _statements(code: CodeType, begin: int, end: int, call: int) -> list[Statement]:
    """Also a test is one if it steps (``if session.step(loss):``)."""
    found, current, steps = list[Statement](), list[Instruction](), False
    for one in between(code, begin, end):
        current.append(one)
        steps |= current[0].offset <= call <= one.offset or one.argval == "step"
        if steps and "_IF_" in one.opname:
            found += statements_in(current)
            current, steps = [], False
    return found + statements_in(current)


@dataclass
class StepUses:
    """The statements, and the keys."""

    parts: list[RunningStatement] = field(default_factory=list)
    keys: set[str] = field(default_factory=set)

    def paths(self) -> Iterator[tuple[FrameType, str]]:
        """Of all variables, and attributes of objects in them, that the statements read."""
        yield from ((part.frame, path) for part in self.parts for path in part.statement.reads)


def uses_of(frames: Sequence[FrameType], head: int, user: Mapping[str, object]) -> StepUses:
    """What the functions compute with that are running, from the one on with the session's loop, which begins at
    ``head``, to the one that steps (none, if that loop is in a generator). ``user``: ``session.state``.
    """
    rest = []
    for frame, then in zip(frames, [*frames, None][1:], strict=True):
        rest += parts_between(frame, *within_loop(frame, head if frame is frames[0] else None), then, user)
    found = StepUses()
    used: dict[int, set[str]] = {id(frame): set() for frame in frames}
    while more := [part for part in rest if _is_used(part, used[id(part.frame)], found.keys)]:
        for part in more:
            rest.remove(part)
            used[id(part.frame)] |= part.statement.reads - part.statement.adds_to
            found.keys |= part.keys_read
        found.parts += more
    return found


def within_loop(frame: FrameType, head: int | None) -> tuple[int, int]:
    """From where to where the loop goes that begins at ``head``; None: the function, which is called in one."""
    return (0, len(frame.f_code.co_code)) if head is None else (head, end_of(frame.f_code, head))


def end_of(code: CodeType, head: int) -> int:
    """Where the loop ends that begins at ``head``."""
    return max((one.offset for one in loop_at(code, head)), default=head) + 1


def _is_used(part: RunningStatement, names: set[str], keys: set[str]) -> bool:
    return part.is_of_step or bool((part.statement.sets | part.filled) & names or part.keys_changed & keys)


@cache
def _sets_options(code: CodeType) -> bool:
    return any(one.stores and one.texts & _OPTIONS for one in statements_in(instructions(code)))
