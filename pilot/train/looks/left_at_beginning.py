"""Tells of a script that may leave its loop at an epoch's beginning by what its model is worth there (``if
validate(model) < target: break``, and then the batches), or by its steps (``if session.steps >= 1000: break``). Whoever
joins or resumes in the middle of the epoch runs its beginning again, with the model of then, and would leave where the
others went on.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import FrameType

from torch import nn

from pilot.train.script import loop_code, refusal
from pilot.train.script.branches import leaves, tests_in
from pilot.train.script.bytecode import running_at
from pilot.train.script.statements import Statement, loop_at
from pilot.train.script.step_uses import end_of

_MEASURES = {"evaluate", "steps", "samples"}


class LeftAtBeginning:
    """Looks for one session."""

    def __init__(self) -> None:
        self._told = False

    def look(self, frames: Sequence[FrameType], head: int) -> None:
        """Tell once. ``frames``: the running functions, from the one with the session's loop on, which begins at
        ``head``.
        """
        if self._told or not frames or not loop_at(frames[0].f_code, head):
            return
        frame, code = frames[0], frames[0].f_code
        inner = [one for one in loop_code.heads(code, running_at(frame)) if one > head]
        begin = inner[0] if inner else loop_code.running_statement(frame).begin
        names = set[str]()
        for one in loop_code.statements_between(code, head, begin):
            if one.reads & names or _measures(one, frame):
                names |= one.sets
        for test, part in tests_in(code):
            is_there = part and head < part[0].offset < begin
            measured = [one for one in test if one.reads & names or _measures(one, frame)]
            if is_there and measured and leaves(part, end_of(code, head)):
                self._tell(sorted(name for one in measured for name in one.reads & names))
                return

    def _tell(self, names: Sequence[str]) -> None:
        self._told = True
        refusal.note(
            "the script may leave its loop at an epoch's beginning by what its steps have made of its model"
            f"{' (' + ', '.join(names) + ')' if names else ''}; a node that joins, or a run that resumes, in the middle"
            " of an epoch runs its beginning again, after more steps, and would leave where others went on: decide at"
            " the epoch's end"
        )


def _measures(one: Statement, frame: FrameType) -> bool:
    """Whether it reads a model, or what the session has of its steps."""
    if loop_code.uses_session(frame, one, _MEASURES):
        return True
    return any(isinstance(loop_code.value_of(frame, *path.split(".")), nn.Module) for path in one.reads)
