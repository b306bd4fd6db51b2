"""What a script does again, and what it keeps itself meanwhile.

A process that has taken over a state runs what others have done before: the beginning of an epoch, its end, the way to
a meeting between two steps. What it changes there, in ``session.state``, tracked objects and the model, they have
changed already; so once it has *caught up*, all of that is put back to the state that it took over. Likewise one whose
step was void. At an epoch's end the script's own values are kept as they were when it came there: whoever takes over a
state then does all of the end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from torch import nn

from pilot.checkpoint.tree import copied
from pilot.train.state.agreement_log import END_OF_EPOCH
from pilot.train.state.block import encoded
from pilot.train.state.loading import filled, load
from pilot.train.state.position import Position


class Stateful(Protocol):
    """What ``session.track`` accepts."""

    def state_dict(self) -> dict[str, Any]:
        """Its state, of types that :mod:`pilot.checkpoint.tree` can store."""

    def load_state_dict(self, state_dict: dict[str, Any]) -> Any:
        """Take over a state."""


Tracked = Mapping[str, Any]
"""States of tracked objects, by name."""
Restore = Callable[[], None]
SMALL_BYTES = 1 << 20
"""The largest tracked object that is copied at each epoch's end."""


class CatchUp:
    """The script's own values, ``user`` and ``tracked``, through all of that.

    ``meeting``: the topic of the meeting in which the script is (:mod:`pilot.train.ranks.collectives`); ``behind``: the
    state was taken over from a rank in a meeting, which has done more since.

    Parameters
    ----------
    position : returns the current one
    met : how often the ranks have met since the last step
    restored : called when something was put back
    """

    def __init__(self, position: Callable[[], Position], met: Callable[[], int], restored: Callable[[], None]) -> None:
        self.user: dict[str, Any] = {}
        self.tracked: dict[str, Stateful] = {}
        self.meeting: int | None = None
        self.behind = False
        self._position, self._met, self._restored = position, met, restored
        self._user_at_end: dict[str, Any] | None = None
        self._tracked_at_end: dict[str, Any] = {}
        self._user_taken: dict[str, Any] | None = None
        self._user_met: dict[str, Any] | None = None
        self._put_back: Restore | None = None
        self._taken_in: int | None = None
        self._has_reached_end = False
        self._has_taken = False

    def does_again(self, put_back: Callable[[], None]) -> None:
        """The script repeats a step. What it changes until then, it has changed before, and ``put_back`` undoes."""
        self._user_taken = copied(self.user)
        self._put_back = put_back

    def loop_begins(self) -> None:
        """The script comes to its loop. If it took over a state before (it asked for its rank), what it has set since
        then belongs to the training's beginning, and functions for a restored state may have been registered since.
        """
        if not self._has_taken:
            return
        if self._put_back is not None:  # once more when the loop's beginning is over
            self._put_back()
        if self._user_taken is not None:
            self._put_user(self._user_taken)
        self._restored()

    def looks_back(self) -> None:
        """The script runs a step that is already done: what it changes until it has caught up is rolled back then."""
        if self._user_taken is None:
            self._user_taken = copied(self.user)

    def reached_end(self) -> None:
        """The epoch has no more steps. A rank that takes over the state from now on will run the script's code here
        again, so it gets the script's values as they are now.
        """
        if self._position().at_end:  # the state taken over includes what the others have done here since
            self._user_caught_up()
            self._put_objects(self._tracked_at_end)
        else:
            self.caught_up()
            self._tracked_at_end = self.objects()
            self._position().met = self._met()
        self._position().at_end = self._has_reached_end = True
        self._user_at_end = copied(self.user)

    def caught_up(self) -> None:
        """The script has reached the state's position. What it changed since taking over the state belongs to an
        earlier position, and the others had done that already.
        """
        self.put_back()
        self._user_caught_up()
        self._taken_in = self._user_met = None

    def put_back(self) -> None:
        """Reset models and tracked objects to the state that was taken over: the script has reached the position where
        it was made.
        """
        if self._put_back is not None:
            self._put_back()
            self._put_back = None
            self._restored()

    def meets(self, topic: int) -> None:
        """The script has reached a meeting that is still to be held; if the state was made in a meeting about this, it
        is this one, so what the script changed on the way, also in ``session.state``, had been done already. (A meeting
        at the epoch's beginning is not, if the state was made at its end.)
        """
        if self._position().at_end:
            if not self._has_reached_end:
                return
            self.put_back()
            if self._user_met is not None:
                self._put_user(self._user_met)
        elif self._taken_in is not None:
            if self._taken_in != topic:
                return
            self.put_back()
            if self._user_taken is not None:
                self._set_user(self._user_taken)
        self._taken_in = self._user_met = None

    def is_measured(self) -> None:
        """Functions of the script measure the model before the meeting at the epoch's end; a state that was made there
        has what the script, which has just done it again, did to the model before. (A measure may change
        ``session.state``, which is put back only at the meeting.)
        """
        if self._position().at_end:
            self.put_back()

    @property
    def has_missed_meeting(self) -> bool:
        """Whether the state was made in a meeting to which the script did not come: those who made it were in the midst
        of what they do between two steps.
        """
        return self._taken_in is not None

    def leaves(self, *, early: bool) -> None:
        """The script leaves its loop (``early``: by ``break``), and may use the model then; the others may have left
        before.
        """
        if self._position().left:
            self.caught_up()
        else:
            self.meets(END_OF_EPOCH)
        if early:  # no rank that takes over the state, or resumes from it, runs the code at this epoch's end again
            self._user_at_end, self._tracked_at_end = None, {}
        self._position().stopped |= early

    # --- the state ---------------------------------------------------------------------------------------------------

    def capture(self) -> dict[str, Any]:
        """Its part of the state; models and tracked objects are as the others have them afterwards."""
        if self._put_back is not None:  # the others do not have what the script has changed since
            self._put_back()
        user = next(values for values in (self._user_at_end, self._user_taken, self.user) if values is not None)
        return {
            # Of a state taken over from others, to which the script has not come yet, the one in which they were.
            "meeting": self.meeting if self._user_taken is None else self._taken_in,
            "user": user,
            "user_met": self.user if self.meeting is not None and self._user_at_end is not None else self._user_met,
            "tracked_at_end": self._tracked_at_end,
        }

    def restore(
        self, state: Mapping[str, Any], *, attends: bool, unmet: bool, objects: Tracked, again: Restore
    ) -> None:
        """Take over a result of :meth:`capture`. The script's own values are kept if it is in a meeting whose outcome
        is in this state: then it will do by itself what the others have done since.

        Parameters
        ----------
        attends : the script is in a meeting of the state's position
        unmet : that has not been held in the state
        objects : the tracked objects' states from before
        again : puts models and tracked objects back to this state
        """
        self._has_taken = True
        meeting = state.get("meeting")
        in_meeting = meeting is not None
        begun = self._position().begun or in_meeting  # before its first batch a script may evaluate
        is_there = attends and in_meeting and unmet
        self._tracked_at_end = dict(state.get("tracked_at_end", {}))
        if attends and not is_there:
            self._put_objects(objects)
        if not attends:
            self._has_reached_end = False
            self._set_user(state["user"])
            self.behind = in_meeting and not self._position().at_end
            self._user_taken = copied(state["user"]) if begun else None
        self._user_met = None if attends else copied(state.get("user_met"))
        self._taken_in = None if is_there else meeting
        self._put_back = again if begun and not is_there else None

    def next_epoch(self) -> None:
        """The epoch's end is over."""
        self._user_at_end, self._tracked_at_end = None, {}
        self._has_reached_end = False

    def objects(self) -> dict[str, Any]:
        """Copies of the states of tracked objects, apart from modules and what is large: a script may ask them, between
        two steps, whether to go on (early stopping), and there they belong to its own values.
        """
        states = {name: one.state_dict() for name, one in self.tracked.items() if not isinstance(one, nn.Module)}
        sizes = {name: sum(leaf.size for leaf in encoded({name: state}).leaves) for name, state in states.items()}
        return {name: copied(state) for name, state in states.items() if sizes[name] <= SMALL_BYTES}

    # --- its parts ---------------------------------------------------------------------------------------------------

    def _user_caught_up(self) -> None:
        self.behind = False
        if self._user_taken is not None:
            self._set_user(self._user_taken)

    def _set_user(self, values: Mapping[str, Any]) -> None:
        self._put_user(values)
        self._user_at_end = self._user_taken = None

    def _put_user(self, values: Mapping[str, Any]) -> None:
        """Lists, sets and dicts stay the same objects: one that meets an evaluation may be in the midst of
        ``state["losses"].append(session.evaluate(...))``. (Not one under two names, which has become two in the state.)
        """
        names = Counter(map(id, self.user.values()))
        held = {name: one for name, one in self.user.items() if names[id(one)] == 1}
        self.user.clear()
        for name, value in copied(values).items():
            self.user[name] = filled(held.get(name), value)

    def _put_objects(self, states: Mapping[str, Any]) -> None:
        for name, one in self.tracked.items():
            if name in states:
                load(copied(states[name]), into=one)
