"""Reports of a group's members, gathered until all have reported.

How the ranks of a forming group find each other: each rank's addresses are collected, then sent to all, and the leader
reports when MPI is up on all. A pilot may speak only for its own rank: its addresses are filed under its node, and
another rank's key is refused. Then, which members cannot reach which, and the findings of a group's examination.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from pilot.comm.pmi import PUTS_MAX, check_put
from pilot.core.commands import FormGroup
from pilot.core.coordinator import Coordinator
from pilot.core.errors import ProtocolError
from pilot.core.events import Event, GroupBroken, GroupExamined, GroupStalled, StallFinding
from pilot.core.ids import Generation, NodeId, TrainerId
from pilot.protocol import wire
from pilot.service.agents.pending import Of, PendingCommands

Puts = dict[str, str]


def group_of(message: Any) -> Of:
    """The group that a message with a trainer and a generation is about."""
    return TrainerId(message.trainer), Generation(message.generation)


def members_of(core: Coordinator, of: Of) -> tuple[NodeId, ...]:
    """The members of a group that trains or forms; empty if it is over."""
    trainer = core.trainers.get(of[0])
    group = trainer.group_of(of[1]) if trainer is not None else None
    return group.members if group is not None else ()


@dataclass(slots=True)
class _Addresses:
    """The addresses of one group so far: the ``table``, ``whose`` each key is, and the endpoints of those nodes that
    have ``arrived``.
    """

    arrived: dict[NodeId, str] = field(default_factory=dict)
    whose: dict[str, NodeId] = field(default_factory=dict)
    table: Puts = field(default_factory=dict)


class Rendezvous:
    """Sends the members of each forming group the addresses of all."""

    def __init__(self, pending: PendingCommands, send: Callable[[NodeId, wire.Sent], None]) -> None:
        self._pending = pending
        self._send = send
        self._addresses: dict[Of, _Addresses] = {}
        self._joined: set[Of] = set()

    def have_met(self, of: Of) -> bool:
        """Whether the members of a forming group have found each other: MPI is up on all of them."""
        return of in self._joined

    def joined(self, node: NodeId, message: wire.RankJoined) -> list[Event]:
        """All ranks of a forming group are in MPI; ignored if ``node`` does not lead such a group."""
        of = group_of(message)
        self._joined.intersection_update(self._pending.forming)
        waiting = self._pending.forming.get(of)
        if waiting is not None and node == waiting.command.members[0]:
            self._joined.add(of)
        return []

    def arrived(self, node: NodeId, message: wire.RankAddress) -> list[Event]:
        """A rank of a forming group is waiting for the others; ignored if no such group is forming with this node.
        ``GroupBroken`` if a group cannot form because of what a member sent.
        """
        of, forming = group_of(message), self._pending.forming
        self._addresses = {known: addresses for known, addresses in self._addresses.items() if known in forming}
        waiting = forming.get(of)
        if waiting is None or node not in waiting.command.members:
            return []
        try:
            _check(message.puts)
            self._file(waiting.command, node, message)
        except ProtocolError as error:
            return [GroupBroken(*of, f"{node}: {error}")]
        return []

    def _file(self, group: FormGroup, node: NodeId, message: wire.RankAddress) -> None:
        of, puts = (group.trainer, group.generation), message.puts
        filed = self._addresses.setdefault(of, _Addresses())
        if any(filed.whose.get(key, node) != node for key in puts):
            raise ProtocolError("it sent an address key of another rank")
        filed.arrived[node] = message.endpoint
        filed.whose.update(dict.fromkeys(puts, node))
        filed.table.update(puts)
        if len(filed.arrived) == len(group.members):
            endpoints = [filed.arrived[member] for member in group.members]
            addresses = wire.GroupAddresses(*of, self._addresses.pop(of).table, endpoints)
            for member in group.members:
                self._send(member, addresses)


def _check(puts: Puts) -> None:
    if len(puts) > PUTS_MAX:
        raise ProtocolError(f"it sent {len(puts)} keys; at most {PUTS_MAX} are allowed")
    for key, value in puts.items():
        check_put(key, value)


class Unreached:
    """The latest reports of the newest groups' members about peers that they cannot reach."""

    def __init__(self, pending: PendingCommands) -> None:
        self._pending = pending
        self._by_group: dict[Of, dict[NodeId, list[NodeId]]] = {}

    def reported(self, node: NodeId, message: wire.PeersUnreached) -> list[Event]:
        """Take a report; ignored if ``node`` is not in such a group."""
        groups, of = self._pending.groups, group_of(message)
        self._by_group = {known: unreached for known, unreached in self._by_group.items() if known in groups}
        if of in groups and node in (members := groups[of].members):
            others = [members[rank] for rank in sorted(set(message.ranks)) if rank < len(members)]
            self._by_group.setdefault(of, {})[node] = [other for other in others if other != node]
        return []

    def explained(self, event: Event) -> Event:
        """``event``; if a group did not form or was examined, with its members that cannot reach each other."""
        if not isinstance(event, GroupBroken | GroupExamined):
            return event
        reports = self._by_group.get((event.trainer, event.generation), {})
        pairs = tuple((node, other) for node, others in reports.items() for other in others)
        return replace(event, unreached=pairs) if pairs else event


EXAMINE_LIMIT_S = 15.0
"""An agent's examination takes about two seconds."""


def finding_of(message: wire.RankExamined) -> StallFinding:
    """The finding that ``message`` names; ``UNKNOWN`` if there is no such finding."""
    return next((finding for finding in StallFinding if finding.value == message.seen), StallFinding.UNKNOWN)


class StallChecks:
    """Completes examinations; it remembers who has answered."""

    def __init__(self, core: Coordinator, pending: PendingCommands) -> None:
        self._core = core
        self._pending = pending
        self._findings: dict[Of, dict[NodeId, StallFinding]] = {}

    def rank_stalled(self, node: NodeId, message: wire.RankStalled) -> list[Event]:
        """A member is waiting; ignored if its group is already being examined, or if it is not in the group."""
        of = group_of(message)
        if node not in members_of(self._core, of) or of in self._pending.examining:
            return []
        what = f"the sums of step {message.step}" if message.summing else f"the other ranks after step {message.step}"
        return [GroupStalled(*of, f"{node} has waited {message.waited_s:.1f} s for {what}", message.waited_s)]

    def awaits(self, node: NodeId, message: wire.RankExamined) -> bool:
        """Whether ``message`` is the answer that ``node`` owes."""
        of = group_of(message)
        return self._examines(of, node) and node not in self._findings.get(of, {})

    def rank_examined(self, node: NodeId, message: wire.RankExamined) -> list[Event]:
        """Completes ``ExamineGroup`` when the last member has been examined."""
        of = group_of(message)
        if not self._examines(of, node):
            return []
        findings = self._findings.setdefault(of, {})
        findings[node] = finding_of(message)
        return self._complete(of) if len(findings) == len(self._pending.examining[of].command.members) else []

    def overdue(self, now_s: float) -> list[Event]:
        """Completes examinations that have taken too long, and forgets those of dissolved groups."""
        examining = self._pending.examining
        self._findings = {of: findings for of, findings in self._findings.items() if of in examining}
        late = [of for of, given in examining.items() if now_s - given.since_s > EXAMINE_LIMIT_S]
        return [event for of in late for event in self._complete(of)]

    def _examines(self, of: Of, node: NodeId) -> bool:
        waiting = self._pending.examining.get(of)
        return waiting is not None and node in waiting.command.members

    def _complete(self, of: Of) -> list[Event]:
        findings, members = self._findings.pop(of, {}), self._pending.examining[of].command.members
        return [GroupExamined(*of, tuple((node, findings.get(node, StallFinding.UNKNOWN)) for node in members))]
