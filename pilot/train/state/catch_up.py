"""What a script does again, and from which state.

A process that has taken over a state runs what others have done before: the beginning of an epoch, or of an iteration.
At its next batch, or at the epoch's end, it takes the same state *again*, which replaces what it has done to declared
things meanwhile. So does one whose step was void, and which goes on before it gets the batch once more.

An epoch's end begins with a copy of the state as it is after the epoch's last step; so does the training. Until the
next batch, that copy is what others get, and what is saved, together with what the ranks have agreed on since: whoever
takes it over runs all that follows from there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from pilot.checkpoint.tree import copied
from pilot.train.state.loading import filled

State = Mapping[str, Any]
"""A result of :meth:`Training.capture <pilot.train.state.training.Training.capture>`."""


class CatchUp:
    """Where the script is, compared with the state that it holds.

    ``meeting``: the topic of the meeting in which the script is (:mod:`pilot.train.ranks.collectives`); ``behind``: the
    state was taken over from a rank in a meeting between two steps, which has done more since; ``since``: the state
    from which the script runs what it does until its next batch, if that was kept; ``made_in``: the topic of the
    meeting in which the state was made, if the script has not come to it. ``restored`` is called when a state was taken
    again.
    """

    def __init__(self, restored: Callable[[], None]) -> None:
        self.meeting: int | None = None
        self.behind = False
        self.made_in: int | None = None
        self.since: State | None = None
        self._restored = restored
        self._again: Callable[[], None] | None = None

    @property
    def repeats(self) -> bool:
        """Whether the script runs what was done before, and will take its state again."""
        return self._again is not None

    def took(self, state: State, again: Callable[[], None] | None) -> None:
        """``state`` was taken over; ``again`` takes it once more (None: the script runs what follows for the first
        time).
        """
        self.since, self._again = state, again
        self.behind, self.made_in = state["behind"], state["meeting"]

    def loop_begins(self) -> None:
        """The script comes to its loop, with a state that it took over before: what it has done since then belongs to
        the training's beginning.
        """
        if self._again is not None:
            self._again()
            self._restored()

    def takes_again(self) -> None:
        """The script has reached the position at which its state was made: it takes it for the last time."""
        self.loop_begins()
        self._again = None

    def comes_to(self, topic: int) -> None:
        """The script has reached a meeting that is still to be held; if its state was made in this one, the script goes
        on from there.
        """
        if self.made_in == topic:
            self.takes_again()
            self.since = self.made_in = None

    def arrives(self) -> None:
        """The script has reached its next batch, the epoch's end, or leaves its loop: it has done what it does until
        there.
        """
        self.takes_again()
        self.since, self.made_in, self.behind = None, None, False


def put_user(user: dict[str, Any], values: Mapping[str, Any]) -> None:
    """Give ``session.state`` these values. Lists, sets and dicts stay the same objects: a script may be in the midst of
    ``state["losses"].append(session.evaluate(...))``. (Not one under two names, which has become two in the state.)
    """
    names = Counter(map(id, user.values()))
    held = {name: one for name, one in user.items() if names[id(one)] == 1}
    user.clear()
    for name, value in copied(values).items():
        user[name] = filled(held.get(name), value)
