"""Tells of what a script does in its steps by the loss of its batch: ``plateau.step(loss.item())``, a learning rate
that falls when an average of losses no longer does. Each rank has its own part of the batch, and would train otherwise.

Read from the script's code, and so on a single node, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dis import Instruction
from functools import cache
from types import CodeType, FrameType

import torch

from pilot.train.script import loop_code, refusal
from pilot.train.script.statements import (
    RETURNS,
    Statement,
    between,
    instructions,
    items_in,
    loop_at,
    path_at,
    statements_in,
    tests_in,
    uses_in,
)
from pilot.train.script.steering import steers, updates

_LOADS = "load_state_dict"
_COUNTS = {"step", "sum"}
_LOADED = {"LOAD_ATTR", "LOAD_METHOD"}


class OwnLoss:
    """Looks for one session."""

    def __init__(self) -> None:
        self._told = False

    def look(self, frames: Sequence[FrameType]) -> None:
        """Tell once. ``frames``: the running functions, from the one on with the session's loop; the last one steps."""
        names = set[str]()
        for frame in () if self._told else reversed(frames):
            heads = loop_code.heads(frame.f_code, frame.f_lasti)
            turn = _statements(frame.f_code, heads[-1] if heads else None)
            names = _behind(frame, turn, names | _losses(frame, turn))
            if names and _decides(frame, turn, names):
                self._tell(sorted(name for name in names if "[" not in name))
                return
            if heads:  # what follows comes after the pass over the batches, see EpochSums
                return
            names = _given(frame, turn, names)

    def _tell(self, names: Sequence[str]) -> None:
        self._told = True
        refusal.note(
            f"the script changes how it trains, in its steps, by the loss of its batch ({', '.join(names)}): each rank"
            " has another part of the batch, so that ranks would differ and the trainer be stopped: use what"
            " session.evaluate returns"
        )


@cache
def _statements(code: CodeType, head: int | None) -> tuple[Statement, ...]:
    """Of the loop that begins at ``head``, or of the whole function; without the tests before them (``if``)."""
    part = instructions(code) if head is None else loop_at(code, head)
    found = []
    for one in statements_in(part):
        within = between(code, one.begin, one.end + 1)
        before = [each.offset for each in within if _is_before(each, one.end)]
        found += statements_in([each for each in within if not before or each.offset > before[-1]])
    return tuple(found)


def _is_before(one: Instruction, end: int) -> bool:
    """Whether it ends a test, or what one leads to (``raise``), before the statement that ends at ``end``."""
    return one.opname.startswith(("RAISE", "JUMP_BACKWARD")) or ("_IF_" in one.opname and one.argval > end)


def _losses(frame: FrameType, turn: Sequence[Statement]) -> set[str]:
    """The variables of which it calls ``backward``, or that it gives to ``session.step``, or to what does so."""
    steps = (one for one in turn if "backward" in one.attributes or _counts(one, frame) or _is_at(one, frame.f_lasti))
    return {path for one in steps for path in one.reads if _is_loss(loop_code.value_of(frame, *path.split(".")))}


def _is_loss(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.numel() == 1 and not value.is_leaf


def _is_at(one: Statement, offset: int) -> bool:
    return one.begin <= offset <= one.end


def _counts(one: Statement, frame: FrameType) -> bool:
    """Whether it calls the session's methods, which return the same on all ranks."""
    paths = [path.split(".") for path in one.reads]
    return any(path[-1] in _COUNTS and loop_code.is_session(frame, path[:-1]) for path in paths)


def _behind(frame: FrameType, turn: Sequence[Statement], losses: set[str]) -> set[str]:
    """The same, and what is computed from them: variables, and items with a key (``session.state["mean"]``)."""
    items = [one for one in items_in(frame.f_code) if one.key]
    found, more = set[str](), losses
    while more:
        found |= more
        more = set()
        for one in turn:
            its = {item: f"{item.holder}[{item.key!r}]" for item in items if _is_at(one, item.where)}
            read = one.reads.union(name for item, name in its.items() if not item.is_changed)
            if not _counts(one, frame) and read & found:
                more |= {name for name in one.sets if "." not in name}
                more |= {name for item, name in its.items() if item.is_changed}
        more -= found
    return found


def _decides(frame: FrameType, turn: Sequence[Statement], names: set[str]) -> bool:
    if any(_steps_by(one, frame, names) for one in turn):
        return True
    return any(
        turn[0].begin <= part[0].offset <= turn[-1].end
        and any(one.reads & names and not _counts(one, frame) for one in test)
        and any(steers(one, frame) or _LOADS in one.attributes for one in statements_in(part))
        for test, part in tests_in(frame.f_code)
        if part
    )


def _steps_by(one: Statement, frame: FrameType, names: set[str]) -> bool:
    """Whether it gives one of these to a scheduler, or an average, or sets an option by it."""
    if not one.reads & names or not steers(one, frame):
        return False
    part = between(frame.f_code, one.begin, one.end + 1)
    loads = (at for at, each in enumerate(part) if each.opname in _LOADED)
    calls = [at for at in loads if updates(path_at(part, at), frame)]
    after = part[calls[-1] :] if calls else part  # another call may test one, before it raises an error
    return any(use == "LOAD" and name in names for _, use, name in uses_in(after))


def _given(frame: FrameType, turn: Sequence[Statement], names: set[str]) -> set[str]:
    """What the function that called this one sets to what it returns of these."""
    returning = [one.offset for one in instructions(frame.f_code) if one.opname in RETURNS]
    reading = [one for one in turn if one.reads & names and not _counts(one, frame)]
    gives = any(_is_at(one, at) for one in reading for at in returning)
    caller = frame.f_back
    if not gives or caller is None:
        return set()
    every = _statements(caller.f_code, None)
    return {name for one in every if _is_at(one, caller.f_lasti) for name in one.sets}
