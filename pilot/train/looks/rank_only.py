"""What a script does on one rank only (``if session.rank == 0:``), as scripts for DDP do. It is told of values that it
gives the session to keep and changes so: they are lost with that rank, and the others' are saved then. An evaluation is
refused. Read from the script's code, and so on a single node, too; with several, the alarm compares what is kept.
"""

from __future__ import annotations

import dis
import re
from collections.abc import Iterator, Sequence
from functools import cache
from types import CodeType, FrameType

from pilot.core.errors import UserError
from pilot.train.script import attribute_code, loop_code, refusal
from pilot.train.script.branches import under_tests
from pilot.train.script.bytecode import instructions, running_at
from pilot.train.script.objects import is_of_the_script
from pilot.train.script.statements import statements_in
from pilot.train.state.training import Training

_CHANGE = ("update", "step", "add", "append", "extend", "load_state_dict")
"""How names of methods begin that change an object."""
_NAMED = re.compile(r"(.*\.)?_*session\.rank")
"""How a method reads the rank; whose it is cannot be looked up any more."""


class RankOnly:
    """Looks for one session. ``training``: has the values."""

    def __init__(self, training: Training) -> None:
        self._training = training
        self._told = False
        self._checked: set[tuple[CodeType, int]] = set()

    def check_evaluation(self) -> None:
        """:class:`UserError` if the script evaluates on some ranks only."""
        for frame in refusal.frames():
            if (place := (frame.f_code, running_at(frame))) not in self._checked:
                self._checked.add(place)
                if any(part[0].offset <= running_at(frame) <= part[-1].offset for part in _on_some_ranks(frame)):
                    raise UserError(
                        "session.evaluate is called on some ranks only (if session.rank == 0:), but all ranks evaluate"
                        " together, each a part: call it on all, and only print or save what it returns on one"
                    )

    def look(self, frames: Sequence[FrameType]) -> None:
        """Tell, once, of those that the running functions change so."""
        names = [] if self._told else list(dict.fromkeys(name for frame in frames for name in self._changed(frame)))
        if names:
            self._told = True
            refusal.note(
                f"the script changes {', '.join(names)} on some ranks only (if session.rank == 0:), but any rank's may"
                " be what a node that joins, or a checkpoint, gets: do it on all ranks"
            )

    def _changed(self, frame: FrameType) -> Iterator[str]:
        for part in _on_some_ranks(frame):
            for statement in statements_in(part):
                if any(_is_of_session(frame, path, "state") for path in statement.stores_in):
                    yield "session.state"
                for path in statement.reads:
                    *owner, name = path.split(".")
                    if owner and name.startswith(_CHANGE):
                        yield from self._named(loop_code.value_of(frame, *owner))

    def _named(self, value: object) -> Iterator[str]:
        return (f"{name!r} (session.track)" for name, one in self._training.tracked.items() if one is value)


def _on_some_ranks(frame: FrameType) -> Iterator[list[dis.Instruction]]:
    return under_tests(frame.f_code, lambda path: _is_rank(frame, path))


def _is_rank(frame: FrameType, path: str) -> bool:
    """Whether it is the session's rank, or an attribute that an object's class sets from one (``self.is_main``)."""
    *owner, name = path.split(".")
    if _is_of_session(frame, path, "rank"):
        return True
    kind = type(loop_code.value_of(frame, *owner)) if owner else object
    return is_of_the_script(kind) and any(name in _set_from_rank(code) for code in attribute_code.methods(kind))


@cache
def _set_from_rank(code: CodeType) -> frozenset[str]:
    """The attributes of a method's object that it sets so. (Other things have a rank, too: a matrix.)"""
    setting = [one for one in statements_in(instructions(code)) if any(map(_NAMED.fullmatch, one.reads))]
    paths = (path.split(".") for one in setting for path in one.sets)
    return frozenset(name for *owner, name in paths if owner == [*code.co_varnames[:1]])


def _is_of_session(frame: FrameType, path: str, attribute: str) -> bool:
    *owner, name = path.split(".")
    return name == attribute and loop_code.is_session(frame, owner)
