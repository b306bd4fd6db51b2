"""Examines groups with a waiting member: who is asked, who has answered, and when the rest counts as unknown.

A member that has waited for the others longer than the site's timeout reports it, and all members are examined at once:
the agents of those that have not arrived know whether they are stopped, stuck or slow. The core decides what follows.
"""

from __future__ import annotations

from pilot.core.coordinator import Coordinator
from pilot.core.events import Event, GroupLookedAt, GroupStalled, Seen
from pilot.core.ids import Generation, NodeId, TrainerId
from pilot.io import wire
from pilot.service.pending import Of, PendingCommands

LOOK_LIMIT_S = 15.0
"""An agent's examination takes about two seconds."""


class StallChecks:
    """The translator; it only remembers who has answered."""

    def __init__(self, core: Coordinator, pending: PendingCommands) -> None:
        self._core = core
        self._pending = pending
        self._seen: dict[Of, dict[NodeId, Seen]] = {}

    def rank_stalled(self, node: NodeId, message: wire.RankStalled) -> list[Event]:
        """A member is waiting; ignored if its group is already being examined, or if it is not in the group."""
        of = _of(message)
        trainer = self._core.trainers.get(of[0])
        groups = (trainer.group, trainer.forming) if trainer is not None else ()
        group = next((group for group in groups if group is not None and group.generation == of[1]), None)
        if group is None or node not in group.members or of in self._pending.looking:
            return []
        what = f"the sums of step {message.step}" if message.summing else f"the other ranks after step {message.step}"
        return [GroupStalled(*of, f"{node} has waited {message.waited_s:.1f} s for {what}", message.waited_s)]

    def awaits(self, node: NodeId, message: wire.RankLookedAt) -> bool:
        """Whether ``message`` is the answer that ``node`` owes."""
        waiting = self._pending.looking.get(_of(message))
        return waiting is not None and node in waiting[0].members and node not in self._seen.get(_of(message), {})

    def rank_looked_at(self, node: NodeId, message: wire.RankLookedAt) -> list[Event]:
        """Completes ``LookAtGroup`` when the last member has been examined."""
        of = _of(message)
        waiting = self._pending.looking.get(of)
        if waiting is None or node not in waiting[0].members:
            return []
        seen = self._seen.setdefault(of, {})
        seen[node] = _seen(message.seen)
        return self._complete(of) if len(seen) == len(waiting[0].members) else []

    def overdue(self, now_s: float) -> list[Event]:
        """Completes examinations that have taken too long, and forgets those of dissolved groups."""
        self._seen = {of: seen for of, seen in self._seen.items() if of in self._pending.looking}
        late = [of for of, (_, since_s) in self._pending.looking.items() if now_s - since_s > LOOK_LIMIT_S]
        return [event for of in late for event in self._complete(of)]

    def _complete(self, of: Of) -> list[Event]:
        seen = self._seen.pop(of, {})
        command, _ = self._pending.looking[of]
        return [GroupLookedAt(*of, tuple((node, seen.get(node, Seen.UNKNOWN)) for node in command.members))]


def _of(message: wire.RankStalled | wire.RankLookedAt) -> Of:
    return TrainerId(message.trainer), Generation(message.generation)


def _seen(text: str) -> Seen:
    return next((seen for seen in Seen if seen.value == text), Seen.UNKNOWN)
