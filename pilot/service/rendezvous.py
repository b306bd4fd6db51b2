"""How the ranks of a forming group find each other: each rank's addresses are collected, then sent to all.

A pilot may speak only for its own rank: what it sends is filed under its node, and another rank's key is refused. If
a group does not form in time, the core is told which members cannot reach each other (:mod:`pilot.agent.peers`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from pilot.comm.pmi import PUTS_MAX, check_put
from pilot.core.commands import FormGroup
from pilot.core.errors import ProtocolError
from pilot.core.events import Event, GroupBroken
from pilot.core.ids import Generation, NodeId, TrainerId
from pilot.io.wire import GroupAddresses, Message, PeersUnreached, RankAddress
from pilot.service.pending import Of, PendingCommands

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
        self._unreached: dict[Of, dict[NodeId, list[NodeId]]] = {}

    def arrived(self, node: NodeId, message: RankAddress) -> None:
        """A rank of a forming group is waiting for the others; ignored if no such group is forming with this node."""
        group = self._forming(node, message)
        if group is None:
            return
        try:
            _check(message.puts)
            self._file(group, node, message)
        except ProtocolError as error:
            self._broken(GroupBroken(group.trainer, group.generation, f"{node}: {error}"))

    def unreached(self, node: NodeId, message: PeersUnreached) -> None:
        """A member cannot reach some others; ignored if no such group is forming with this node."""
        group = self._forming(node, message)
        if group is not None:
            unreached = self._unreached.setdefault((group.trainer, group.generation), {})
            unreached[node] = [group.members[rank] for rank in message.ranks if rank < len(group.members)]

    def explained(self, event: Event) -> Event:
        """``event``; if a group has not formed, with the members that cannot reach each other."""
        if not isinstance(event, GroupBroken) or (of := (event.trainer, event.generation)) not in self._unreached:
            return event
        pairs = tuple((node, other) for node, others in self._unreached.pop(of).items() for other in others)
        if not pairs:
            return event
        (node, other), *more = pairs
        why = f"{event.reason}: {node} cannot reach {other}{f', and {len(more)} more like this' if more else ''}"
        return replace(event, reason=why, unreached=pairs)

    def _forming(self, node: NodeId, message: RankAddress | PeersUnreached) -> FormGroup | None:
        """The forming group that ``message`` is about; None if there is none with this node."""
        forming = self._pending.forming
        self._filed = {of: filed for of, filed in self._filed.items() if of in forming}
        self._unreached = {of: unreached for of, unreached in self._unreached.items() if of in forming}
        group, _ = forming.get((TrainerId(message.trainer), Generation(message.generation)), (None, 0.0))
        return group if group is not None and node in group.members else None

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
