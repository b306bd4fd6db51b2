"""Combines simultaneous changes of the pool into one event.

If one job preempts twenty pilots, the pool should change once and regroup once, not twenty times. Everything about the
pool is therefore delayed for a moment. So are reports of broken groups, because a killed member breaks its group and
closes its connection at about the same time, and the loss explains more.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from pilot.core.events import Event, GroupBroken, PoolChanged
from pilot.core.ids import Generation, NodeId, TrainerId
from pilot.core.pool.node_type import NodeType

GATHER_S = 0.05


@dataclass(slots=True)
class _Change:
    """A :class:`PoolChanged` that is still growing, with its nodes in order."""

    joined: dict[NodeId, NodeType | None] = field(default_factory=dict)
    noticed: dict[NodeId, float] = field(default_factory=dict)
    lost: dict[NodeId, None] = field(default_factory=dict)
    ends: dict[NodeId, float | None] = field(default_factory=dict)
    causes: dict[str, None] = field(default_factory=dict)

    def __contains__(self, node: NodeId) -> bool:
        return node in self.joined or node in self.noticed or node in self.lost

    def event(self) -> PoolChanged:
        deadline_s = min(self.noticed.values()) if self.noticed else None
        cause, ends = "; ".join(self.causes), tuple(self.ends.items())
        types = tuple((node, its) for node, its in self.joined.items() if its is not None and its.name)
        return PoolChanged(tuple(self.joined), tuple(self.noticed), tuple(self.lost), deadline_s, cause, ends, types)


class Coalescer:
    """Delays events for :data:`GATHER_S`, until ``due_s``; None: there are none."""

    def __init__(self) -> None:
        self.due_s: float | None = None
        self._changes: list[_Change] = []
        self._broken: dict[tuple[TrainerId, Generation], GroupBroken] = {}

    def joined(self, now_s: float, node: NodeId, its: NodeType | None = None) -> None:
        """``node`` registered, whose type is ``its``, if that is known."""
        self._change(now_s, node, "registered").joined[node] = its

    def noticed(self, now_s: float, node: NodeId, deadline_s: float, cause: str) -> None:
        """``node`` was given notice and lives until ``deadline_s`` at the latest."""
        self._change(now_s, node, cause).noticed[node] = deadline_s

    def ends(self, now_s: float, node: NodeId, at_s: float | None) -> None:
        """``node`` will have left by ``at_s``; None: that is no longer known."""
        if not self._changes:
            self._changes.append(_Change())
        self._changes[-1].ends[node] = at_s
        self._wait(now_s)

    def lost(self, now_s: float, node: NodeId, cause: str) -> None:
        """``node`` is gone."""
        self._change(now_s, node, cause).lost[node] = None

    def broken(self, now_s: float, event: GroupBroken) -> None:
        """A group broke; the first report has the reason, unless a member could not load the state: that ended the
        rest."""
        of = (event.trainer, event.generation)
        self._broken[of] = event if event.unloaded is not None else self._broken.get(of, event)
        self._wait(now_s)

    def take(self, now_s: float, undecided: Callable[[GroupBroken], bool]) -> list[Event]:
        """The delayed events. Groups with a member whose fate is ``undecided`` keep waiting for it."""
        out: list[Event] = [change.event() for change in self._changes]
        self._changes.clear()
        for key, event in list(self._broken.items()):
            if not undecided(event):
                out.append(self._broken.pop(key))
        self.due_s = now_s + GATHER_S if self._broken else None
        return out

    def _change(self, now_s: float, node: NodeId, cause: str) -> _Change:
        """The change to add to: a node appears once per event, so a second fact about it starts the next event."""
        if not self._changes or node in self._changes[-1]:
            self._changes.append(_Change())
        self._wait(now_s)
        change = self._changes[-1]
        change.causes[cause] = None
        return change

    def _wait(self, now_s: float) -> None:
        if self.due_s is None:
            self.due_s = now_s + GATHER_S
