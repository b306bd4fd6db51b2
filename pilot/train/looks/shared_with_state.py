"""Tells of tensors and arrays of ``session.state`` that the script changes by another name, which it has from before
the loop or from an epoch's beginning: ``kept = session.state["kept"]``, then ``kept.add_(1)`` in the batches. Where a
state is received, ``session.state`` holds another object then. (Lists and dicts stay the same.)
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any

from pilot.train.looks.holders import held_by
from pilot.train.looks.marks import ARRAYS, DEPTH, Place, marks_in
from pilot.train.script import loop_code, refusal
from pilot.train.script.bytecode import running_at
from pilot.train.script.objects import is_of_the_script, spaces
from pilot.train.state.training import Training

_BEFORE = "before the loop"
_AT_BEGINNING = "an epoch's beginning"


@dataclass(frozen=True)
class _Shared:
    """The value ``session.state[key]``, which one of the script's variables has: which it is, and what it holds."""

    key: str
    value: int
    mark: dict[str, Any]

    def becomes(self, now: _Shared | None) -> bool:
        """Whether it is changed in place."""
        return now is not None and (now.key, now.value) == (self.key, self.value) and now.mark != self.mark


class SharedWithState:
    """Looks for one session. ``training``: what it knows."""

    def __init__(self, training: Training) -> None:
        self._training = training
        self._first: dict[Place, _Shared] = {}
        self._of_epoch: dict[Place, _Shared] = {}
        self._epoch = -1
        self._told = False

    def begin(self) -> None:
        """The loop begins."""
        self._first = dict(self._now(()))

    def look(self, frames: Sequence[FrameType], anew: Collection[Place], *, at_end: bool) -> None:
        """Tell once.

        Parameters
        ----------
        frames : the running functions, from the one with the session's loop on
        anew : the variables that each turn of that sets anew
        at_end : whether it is the end of a turn
        """
        if self._told:
            return
        if self._epoch != self._training.position.epoch:
            self._epoch, self._of_epoch = self._training.position.epoch, {}
        now = dict(self._now(set() if at_end else set(_set_by_batches(frames))))
        for since, before in ((_BEFORE, self._first), (_AT_BEGINNING, self._of_epoch)):
            for place, one in before.items():
                variable = (place[0], place[1].partition(".")[0])
                if one.becomes(now.get(place)) and (since != _BEFORE or variable not in anew):
                    self._tell(place[1], one.key, since)
                    return
        self._of_epoch = {} if at_end else now

    def _now(self, without: Collection[Place]) -> Iterator[tuple[Place, _Shared]]:
        """``without`` these variables."""
        keys = {id(one): key for key, one in self._training.user.items() if isinstance(one, ARRAYS)}
        variables = ((which, name, value) for which, values in spaces() for name, value in list(values.items()))
        for which, name, value in variables if keys else ():
            if (which, name) not in without:
                held = held_by(value) if is_of_the_script(type(value)) else ()
                for path, one in [("", value), *held]:
                    if id(one) in keys:
                        mark = dict(marks_in("", one, set(), (), DEPTH))
                        yield (which, name + path), _Shared(keys[id(one)], id(one), mark)

    def _tell(self, name: str, key: str, since: str) -> None:
        self._told = True
        refusal.note(
            f"the script changes session.state[{key!r}] by another name, which it has from {since} ({name}); on a node"
            " that joins, or in a run that resumes, session.state holds another object then: write"
            f" session.state[{key!r}] where it is used"
        )


def _set_by_batches(frames: Sequence[FrameType]) -> Iterator[Place]:
    """The variables that each turn of the innermost loops sets anew."""
    for frame in frames:
        for head in loop_code.heads(frame.f_code, running_at(frame))[-1:]:
            which = id(frame.f_globals if frame.f_locals is frame.f_globals else frame)
            yield from ((which, name) for name in loop_code.set_anew(frame.f_code, head))
