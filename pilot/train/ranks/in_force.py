"""Which generation is in force on a node: what each of its processes knows, and what they agree on if they are tied
(:mod:`pilot.train.node.node_ties`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from pilot.comm.channel import Gone
from pilot.train.node.membership import Membership, MembershipState
from pilot.train.node.node_ties import NodeTies

_Result = TypeVar("_Result")


@dataclass
class InForce:
    """One training process's view. ``membership``: what it knows; ``ties``: to the others of the node; ``lose`` is
    called when a generation is gone.
    """

    membership: MembershipState
    ties: NodeTies
    lose: Callable[[int], None]
    _started: Membership | None = None

    @property
    def group(self) -> Membership | None:
        """The generation in force. If the node's processes are tied, it counts as gone only once all of them know."""
        return self._started if self.ties.tied else self.membership.current

    def started(self, group: Membership) -> None:
        """``group`` is in force, with the same state on all of its ranks."""
        self._started = group

    def ended(self) -> None:
        """No generation is in force any more."""
        self._started = None

    def look_again(self) -> None:
        """At the end of a script, when nothing is computed any more, each process checks for itself."""
        if self.membership.current is None:
            self._started = None

    def next(self, attend: Callable[[], None], ready: Callable[[], bool]) -> int:
        """Wait for the generation to start, the same on all tied processes. ``attend`` waits for events; ``ready``:
        whether this process could start one.
        """
        newest = 0
        while True:
            membership = self.membership.startable() if ready() else None
            if membership is None or membership.generation < newest:
                attend()
            elif (said := self.ties.same_generation(membership.generation)) > 0:
                return said
            else:
                newest = -said

    def begin(self, generation: int) -> Membership:
        """Start ``generation``; :class:`~pilot.comm.channel.Gone` if it was dissolved meanwhile."""
        joining = self.membership.joining
        if joining is None or joining.generation != generation:
            raise Gone
        return self.membership.start(generation)

    def together(self, group: Membership, act: Callable[[], _Result]) -> _Result:
        """The result of ``act``. If it does not succeed on all processes of the node, ``group`` is gone."""
        try:
            return self.ties.together(act)
        except Gone:
            self.lose(group.generation)
            self._started = None
            raise
