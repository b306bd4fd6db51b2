"""Finds members of a group that do not answer while others wait for them, long before they count as lost.

A node that stands still, or whose network is down, is noticed by the others of its group first: after
:data:`pilot.train.ranks.meters.ASK_S` in a wait they say so. Then all members are asked, and an agent answers at once,
however slow its training process is. Without those that do not, the others go on.
"""

from __future__ import annotations

from collections.abc import Callable

from pilot.core.coordinator import Coordinator
from pilot.core.events import Event, GroupBroken
from pilot.core.ids import NodeId
from pilot.protocol import wire
from pilot.service.agents.members import group_of, members_of
from pilot.service.agents.pending import Of
from pilot.service.agents.roster import Roster

ANSWER_S = 2.0


class SilenceChecks:
    """Asks members whether they are there; it remembers when."""

    def __init__(self, core: Coordinator, roster: Roster, send: Callable[[NodeId, wire.Sent], None]) -> None:
        self._core, self._roster, self._send = core, roster, send
        self._asked: dict[Of, float] = {}

    def rank_stalled(self, now_s: float, node: NodeId, message: wire.RankStalled) -> None:
        """Ask all members, because ``node`` waits for them."""
        members = members_of(self._core, of := group_of(message))
        if node in members and of not in self._asked:
            self._asked[of] = now_s
            for member in members:
                self._send(member, wire.AreYouThere())

    def overdue(self, now_s: float) -> list[Event]:
        """Return the groups that can go on without members that have not answered in time."""
        over = [of for of, asked_s in self._asked.items() if now_s - asked_s >= ANSWER_S]
        return [event for of in over for event in self._without_silent(of, self._asked.pop(of))]

    def _without_silent(self, of: Of, asked_s: float) -> list[Event]:
        """Members whose connection is closed are not silent, as the roster waits for them for a moment, or after a
        restart for long; but they are not relied upon either.
        """
        pilots = {node: self._roster.pilots.get(node) for node in members_of(self._core, of)}
        here = {node: one.heard_s for node, one in pilots.items() if one is not None and one.here}
        absent = [node for node in pilots if node not in here or here[node] < asked_s]
        silent = tuple(node for node in absent if node in here)
        if not silent or not self._core.trainers[of[0]].can_do_without(absent):
            return []
        reason = f"for {ANSWER_S:g} s {', '.join(silent)} did not answer, while others waited"
        return [GroupBroken(*of, reason, silent=silent)]
