"""What the members of a group report, gathered until all have.

How the ranks of a forming group find each other: each rank's addresses are collected, then sent to all, and the leader
says when MPI is up on all. A pilot may speak only for its own rank: what it sends is filed under its node, and another
rank's key is refused. Then, which members cannot reach which, and what an examination of a group finds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from pilot.comm.pmi import PUTS_MAX, check_put
from pilot.core.commands import FormGroup
from pilot.core.coordinator import Coordinator
from pilot.core.errors import ProtocolError
from pilot.core.events import Event, GroupBroken, GroupExamined, GroupStalled, StallFinding
from pilot.core.ids import Generation, NodeId, TrainerId
from pilot.protocol import wire
from pilot.protocol.wire import GroupAddresses, Message, PeersUnreached, RankAddress, RankJoined
from pilot.service.agents.pending import Of, PendingCommands

Puts = dict[str, str]


@dataclass(slots=True)
class _Filed:
    """What was put in one group: the ``table``, ``whose`` each key is, and the endpoints of those nodes that have
    ``arrived``.
    """

    arrived: dict[NodeId, str] = field(default_factory=dict)
    whose: dict[str, NodeId] = field(default_factory=dict)
    table: Puts = field(default_factory=dict)


class Rendezvous:
    """``broken`` is called if a group cannot form because of what a member sent."""

    def __init__(
        self, pending: PendingCommands, send: Callable[[NodeId, Message], None], broken: Callable[[GroupBroken], None]
    ) -> None:
        self._pending = pending
        self._send = send
        self._broken = broken
        self._filed: dict[Of, _Filed] = {}
        self._joined: set[Of] = set()

    def have_met(self, of: Of) -> bool:
        """Whether the members of a forming group have found each other: MPI is up on all of them."""
        return of in self._joined

    def joined(self, node: NodeId, message: RankJoined) -> None:
        """All ranks of a forming group are in MPI; ignored if ``node`` does not lead such a group."""
        of = (TrainerId(message.trainer), Generation(message.generation))
        self._joined.intersection_update(self._pending.forming)
        waiting = self._pending.forming.get(of)
        if waiting is not None and node == waiting[0].members[0]:
            self._joined.add(of)

    def arrived(self, node: NodeId, message: RankAddress) -> None:
        """A rank of a forming group is waiting for the others; ignored if no such group is forming with this node."""
        of = (TrainerId(message.trainer), Generation(message.generation))
        self._filed = {forming: filed for forming, filed in self._filed.items() if forming in self._pending.forming}
        waiting = self._pending.forming.get(of)
        if waiting is None or node not in waiting[0].members:
            return
        try:
            _check(message.puts)
            self._file(waiting[0], node, message)
        except ProtocolError as error:
            self._broken(GroupBroken(*of, f"{node}: {error}"))

    def _file(self, group: FormGroup, node: NodeId, message: RankAddress) -> None:
        of, puts = (group.trainer, group.generation), message.puts
        filed = self._filed.setdefault(of, _Filed())
        if any(filed.whose.get(key, node) != node for key in puts):
            raise ProtocolError("it sent an address key of another rank")
        filed.arrived[node] = message.endpoint
        filed.whose.update(dict.fromkeys(puts, node))
        filed.table.update(puts)
        if len(filed.arrived) == len(group.members):
            endpoints = [filed.arrived[member] for member in group.members]
            addresses = GroupAddresses(*of, self._filed.pop(of).table, endpoints)
            for member in group.members:
                self._send(member, addresses)


def _check(puts: Puts) -> None:
    if len(puts) > PUTS_MAX:
        raise ProtocolError(f"it sent {len(puts)} keys; at most {PUTS_MAX} are allowed")
    for key, value in puts.items():
        check_put(key, value)


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
        if not isinstance(event, GroupBroken | GroupExamined):
            return event
        told = self._by_group.get((event.trainer, event.generation), {})
        pairs = tuple((node, other) for node, others in told.items() for other in others)
        return replace(event, unreached=pairs) if pairs else event


LOOK_LIMIT_S = 15.0
"""An agent's examination takes about two seconds."""


class StallChecks:
    """The translator; it only remembers who has answered."""

    def __init__(self, core: Coordinator, pending: PendingCommands) -> None:
        self._core = core
        self._pending = pending
        self._seen: dict[Of, dict[NodeId, StallFinding]] = {}

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

    def awaits(self, node: NodeId, message: wire.RankExamined) -> bool:
        """Whether ``message`` is the answer that ``node`` owes."""
        waiting = self._pending.looking.get(_of(message))
        return waiting is not None and node in waiting[0].members and node not in self._seen.get(_of(message), {})

    def rank_examined(self, node: NodeId, message: wire.RankExamined) -> list[Event]:
        """Completes ``ExamineGroup`` when the last member has been examined."""
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
        return [GroupExamined(*of, tuple((node, seen.get(node, StallFinding.UNKNOWN)) for node in command.members))]


def _of(message: wire.RankStalled | wire.RankExamined) -> Of:
    return TrainerId(message.trainer), Generation(message.generation)


def _seen(text: str) -> StallFinding:
    return next((seen for seen in StallFinding if seen.value == text), StallFinding.UNKNOWN)
