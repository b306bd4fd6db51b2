"""Tells of values that a script gives the session to keep, and changes on one rank only (``if session.rank == 0:``), as
scripts for DDP do: they are lost with that rank, and the others' are saved then. Read from the script's code, so it
is told of on a single node, too; with several, the alarm compares them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import FrameType

from pilot.train import loop_code, refusal
from pilot.train.statements import statements_in, under_tests
from pilot.train.training import Training

_CHANGE = ("update", "step", "add", "append", "extend", "load_state_dict")
"""How names of methods begin that change an object."""
_SESSION = "pilot.train.session"


class RankOnly:
    """Looks for one session. ``training``: has the values."""

    def __init__(self, training: Training) -> None:
        self._training = training
        self._told = False

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
        for part in under_tests(frame.f_code, lambda path: _is_of_session(frame, path, "rank")):
            for statement in statements_in(part):
                if any(_is_of_session(frame, path, "state") for path in statement.stores_in):
                    yield "session.state"
                for path in statement.reads:
                    *owner, name = path.split(".")
                    if owner and name.startswith(_CHANGE):
                        yield from self._named(loop_code.value_of(frame, *owner))

    def _named(self, value: object) -> Iterator[str]:
        return (f"{name!r} (session.track)" for name, one in self._training.tracked.items() if one is value)


def _is_of_session(frame: FrameType, path: str, attribute: str) -> bool:
    *owner, name = path.split(".")
    return bool(owner) and name == attribute and type(loop_code.value_of(frame, *owner)).__module__ == _SESSION
