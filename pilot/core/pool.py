"""The pool: the nodes held now, which trainers they are planned for, and whose workers run on them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from pilot.core.evidence import SetAside
from pilot.core.ids import NodeId, TrainerId, natural_key
from pilot.core.topology import Topology

NodeOrder = Callable[[NodeId, int], Any]
"""Sort key of a node from its name and its number in the order of joining."""


def hostname_order(node: NodeId, _joined: int) -> Any:
    """Natural hostname order: neighbours arrive together and leave together, so trainers get neighbours."""
    return natural_key(node)


def join_order(_node: NodeId, joined: int) -> int:
    """First come, first handed out."""
    return joined


NODE_ORDERS: dict[str, NodeOrder] = {"hostname": hostname_order, "join": join_order}

TOPOLOGY = "topology"
"""Hostname order, but each trainer gets the nodes nearest to its own: :mod:`pilot.core.topology`."""

NODE_ORDER_NAMES = (*NODE_ORDERS, TOPOLOGY)


@dataclass(eq=False)
class PoolState:
    """The plain data of a pool: ``numbers`` are the nodes, with their number in the order of joining; ``ends``, when
    nodes will surely have left, if known."""

    numbers: dict[NodeId, int] = field(default_factory=dict)
    joined: int = 0
    leaving: dict[NodeId, float | None] = field(default_factory=dict)
    aside: dict[NodeId, SetAside] = field(default_factory=dict)
    owner: dict[NodeId, TrainerId] = field(default_factory=dict)
    occupant: dict[NodeId, TrainerId] = field(default_factory=dict)
    ends: dict[NodeId, float] = field(default_factory=dict)


class Pool(PoolState):
    """Nodes, their *owner* (whom the last plan gave them to) and their *occupant* (the trainer whose worker is there).

    The two differ while a node changes hands: it has a new owner at once, and its old occupant until that one's worker
    has ended. A node is *available* to a plan when it has no owner, is not leaving and not set ``aside``.
    """

    def __init__(
        self,
        order: NodeOrder = hostname_order,
        state: PoolState | None = None,
        topology: Topology | None = None,
    ) -> None:
        super().__init__(**vars(state or PoolState()))
        self._order, self._topology = order, topology
        self._keys = {node: order(node, number) for node, number in self.numbers.items()}

    def order_by(self, order: NodeOrder, topology: Topology | None) -> None:
        """Hand out and take back nodes in another order from now on."""
        self._order, self._topology = order, topology

    def __contains__(self, node: NodeId) -> bool:
        return node in self.numbers

    def __len__(self) -> int:
        return len(self.numbers)

    @property
    def nodes(self) -> list[NodeId]:
        """All nodes, in the order of joining."""
        return list(self.numbers)

    @property
    def usable(self) -> int:
        """How many nodes a plan may count on: all except those that are leaving, and free ones that are set aside."""
        return len(self.numbers) - len(self.leaving) - sum(self.is_free(node) for node in self.aside)

    def is_free(self, node: NodeId) -> bool:
        """Whether ``node`` has no owner and is not leaving."""
        return node in self.numbers and node not in self.owner and node not in self.leaving

    def join(self, node: NodeId) -> bool:
        """Add ``node``; False if it is in the pool already."""
        if node in self.numbers:
            return False
        self.numbers[node] = self.joined
        self._keys[node] = self._order(node, self.joined)
        self.joined += 1
        return True

    def leave(self, node: NodeId, deadline_s: float | None) -> bool:
        """Mark ``node`` as leaving and take it from its owner; False if it was leaving already, or is not here."""
        if node not in self.numbers or node in self.leaving:
            return False
        self.leaving[node] = deadline_s
        self.owner.pop(node, None)
        return True

    def remove(self, node: NodeId) -> bool:
        """Remove ``node``; False if it is not in the pool."""
        if self.numbers.pop(node, None) is None:
            return False
        del self._keys[node]
        self.leaving.pop(node, None)
        self.aside.pop(node, None)
        self.owner.pop(node, None)
        self.occupant.pop(node, None)
        self.ends.pop(node, None)
        return True

    def know_end(self, node: NodeId, at_s: float | None) -> None:
        """Record that ``node`` will have left at ``at_s``; None: no longer known."""
        if at_s is None or node not in self.numbers:
            self.ends.pop(node, None)
        else:
            self.ends[node] = at_s

    def ends_before(self, node: NodeId, at_s: float) -> bool:
        """Whether it is known that ``node`` will have left before ``at_s``."""
        return self.ends.get(node, math.inf) < at_s

    def in_order(self, nodes: list[NodeId]) -> list[NodeId]:
        """``nodes`` in the order in which they are handed out and taken back."""
        return sorted(nodes, key=self._keys.__getitem__)

    def handed_out(self, own: list[NodeId], free: list[NodeId], count: int) -> list[NodeId]:
        """Up to ``count`` of the ``free`` nodes (in order), for a trainer that has ``own``."""
        return free[:count] if self._topology is None else self._topology.nearest(own, free, count)

    def taken_back(self, own: list[NodeId]) -> list[NodeId]:
        """A trainer's ``own`` nodes in the order in which it gives them back."""
        ordered = self.in_order(own)
        return ordered if self._topology is None else self._topology.farthest(ordered)

    def available(self) -> list[NodeId]:
        """Nodes that a plan may give to a trainer that grows, in order."""
        return self.in_order([n for n in self.numbers if self.is_free(n) and n not in self.aside])
