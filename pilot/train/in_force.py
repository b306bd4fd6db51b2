"""Which generation is in force on a node: what each of its processes knows by itself, and what they agree on where they
are tied (:mod:`pilot.train.node_ties`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from pilot.comm.channel import Gone
from pilot.train.membership import Membership, MembershipState
from pilot.train.node_ties import NodeTies

_Result = TypeVar("_Result")


class InForce:
    """Of one training process.

    Parameters
    ----------
    membership : what this process knows
    ties : to the other processes of the node
    lose : a generation has gone
    """

    def __init__(self, membership: MembershipState, ties: NodeTies, lose: Callable[[int], None]) -> None:
        self._membership = membership
        self._ties = ties
        self._lose = lose
        self._started: Membership | None = None

    @property
    def group(self) -> Membership | None:
        """The one in force. On a node whose processes are tied, that it is gone counts when all of them know."""
        return self._started if self._ties.tied else self._membership.current

    def started(self, group: Membership) -> None:
        """``group`` is in force, with the same state on all of its ranks."""
        self._started = group

    def ended(self) -> None:
        """None is."""
        self._started = None

    def look_again(self) -> None:
        """At the end of a script, when nothing is computed any more, each sees by itself that it is gone."""
        if self._membership.current is None:
            self._started = None

    def next(self, attend: Callable[[], None], ready: Callable[[], bool]) -> int:
        """Wait for the generation to start: the same on all processes that are tied. ``attend`` waits for what happens;
        ``ready``: this process could start one.
        """
        newest = 0
        while True:
            membership = self._membership.startable() if ready() else None
            if membership is None or membership.generation < newest:
                attend()
            elif (said := self._ties.same_generation(membership.generation)) > 0:
                return said
            else:
                newest = -said

    def begin(self, generation: int) -> Membership:
        """It is what this process starts; :class:`~pilot.comm.channel.Gone` where it was dissolved meanwhile."""
        joining = self._membership.joining
        if joining is None or joining.generation != generation:
            raise Gone
        return self._membership.start(generation)

    def together(self, group: Membership, act: Callable[[], _Result]) -> _Result:
        """What ``act`` gives. Where it does not come to pass on all of the node, ``group`` is gone."""
        try:
            return self._ties.together(act)
        except Gone:
            self._lose(group.generation)
            self._started = None
            raise
