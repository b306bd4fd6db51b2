"""Which members of their groups pilots cannot reach (:mod:`pilot.agent.peers`): why a group does not work."""

from __future__ import annotations

from dataclasses import replace

from pilot.core.events import Event, GroupBroken, GroupLookedAt
from pilot.core.ids import Generation, NodeId, TrainerId
from pilot.io.wire import PeersUnreached
from pilot.service.pending import Of, PendingCommands


class Unreached:
    """What the members of the newest groups have reported last."""

    def __init__(self, pending: PendingCommands) -> None:
        self._pending = pending
        self._by_group: dict[Of, dict[NodeId, list[NodeId]]] = {}

    def told(self, node: NodeId, message: PeersUnreached) -> None:
        """``node`` reports; ignored if it is not in such a group."""
        groups, of = self._pending.groups, (TrainerId(message.trainer), Generation(message.generation))
        self._by_group = {known: unreached for known, unreached in self._by_group.items() if known in groups}
        if of in groups and node in (members := groups[of].members):
            others = [members[rank] for rank in sorted(set(message.ranks)) if rank < len(members)]
            self._by_group.setdefault(of, {})[node] = [other for other in others if other != node]

    def explained(self, event: Event) -> Event:
        """``event``; if a group did not form or was looked at, with those of its members that cannot reach each
        other.
        """
        if not isinstance(event, GroupBroken | GroupLookedAt):
            return event
        told = self._by_group.get((event.trainer, event.generation), {})
        pairs = tuple((node, other) for node, others in told.items() for other in others)
        return replace(event, unreached=pairs) if pairs else event
