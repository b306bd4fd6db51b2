"""The pool: the nodes held now, which trainers they are planned for, and whose workers run on them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Any

from pilot.core.ids import NodeId, TrainerId, natural_key
from pilot.core.pool.evidence import SetAside
from pilot.core.pool.node_type import NodeType, SlowNode
from pilot.core.pool.topology import Topology

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
"""Hostname order, but each trainer gets the nodes nearest to its own: :mod:`pilot.core.pool.topology`."""

NODE_ORDER_NAMES = (*NODE_ORDERS, TOPOLOGY)


@dataclass(eq=False)
class PoolState:
    """The plain data of a pool."""

    numbers: dict[NodeId, int] = field(default_factory=dict)  #: the nodes, with their number in the order of joining
    joined: int = 0  #: how many nodes have joined so far
    leaving: dict[NodeId, float | None] = field(default_factory=dict)  #: nodes that got a notice, with their deadline
    aside: dict[NodeId, SetAside] = field(default_factory=dict)
    owner: dict[NodeId, TrainerId] = field(default_factory=dict)
    occupant: dict[NodeId, TrainerId] = field(default_factory=dict)
    ends: dict[NodeId, float] = field(default_factory=dict)  #: when nodes will surely have left, if known
    busy: dict[NodeId, None] = field(default_factory=dict)  #: nodes on which a script runs on after its loop
    types: dict[str, NodeType] = field(default_factory=dict)  #: those seen so far, by name
    type_of: dict[NodeId, str] = field(default_factory=dict)  #: the nodes' types; one without an entry has none ("")
    slow: dict[NodeId, SlowNode] = field(default_factory=dict)  #: nodes that count as slow for their type
    #: from when to when measurements differed from what ``slow`` says
    contradicted: dict[NodeId, tuple[float, float]] = field(default_factory=dict)


class Pool(PoolState):
    """Nodes, their *owner* (the trainer of the last plan) and their *occupant* (the trainer whose worker is there).

    The two differ while a node changes hands: it has a new owner at once, and its old occupant until that one's worker
    has ended. A node is *available* to a plan when it has no owner, is not leaving and not set ``aside``, and is not
    *busy*: there, the script of a trainer that closes may run on for long.
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
        self.of_type = Counter(self.type_of.get(node, "") for node in self.numbers)  # how many, by name

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
        """How many nodes a plan may count on: all except those that are leaving or busy, and free ones that are set
        aside.
        """
        out = len({**self.leaving, **self.busy})
        return len(self.numbers) - out - sum(self.is_free(node) for node in self.aside)

    def counted(self) -> list[NodeId]:
        """The nodes that are :attr:`usable`."""
        out = {**self.leaving, **self.busy}
        return [n for n in self.numbers if n not in out and not (n in self.aside and n not in self.owner)]

    def is_free(self, node: NodeId) -> bool:
        """Whether ``node`` has no owner, is not leaving and not busy."""
        return node in self.numbers and not any(node in taken for taken in (self.owner, self.leaving, self.busy))

    def join(self, node: NodeId) -> bool:
        """Add ``node``; False if it is in the pool already."""
        if node in self.numbers:
            return False
        self.numbers[node] = self.joined
        self._keys[node] = self._order(node, self.joined)
        self.joined += 1
        self.of_type[""] += 1
        return True

    def leave(self, node: NodeId, deadline_s: float | None) -> bool:
        """Mark ``node`` as leaving and take it from its owner; False if it was leaving already, or is not here."""
        if node not in self.numbers or node in self.leaving:
            return False
        self.leaving[node] = deadline_s
        self.owner.pop(node, None)
        return True

    def free(self, node: NodeId) -> bool:
        """Mark ``node`` as no longer busy; returns whether plans can count on it again."""
        was_busy = node in self.busy
        self.busy.pop(node, None)
        return was_busy and node not in self.leaving

    def remove(self, node: NodeId) -> bool:
        """Remove ``node``; False if it is not in the pool."""
        if self.numbers.pop(node, None) is None:
            return False
        del self._keys[node]
        self.of_type[self.type_of.get(node, "")] -= 1
        self.leaving.pop(node, None)
        self.aside.pop(node, None)
        self.owner.pop(node, None)
        self.occupant.pop(node, None)
        self.ends.pop(node, None)
        for known in (self.busy, self.type_of, self.slow, self.contradicted):
            known.pop(node, None)
        return True

    def know_type(self, node: NodeId, of: NodeType) -> None:
        """Record the type of ``node``. What is known of a type is what its newest node has, but the least memory."""
        known = self.types.get(of.name, of)
        least_gb = min(filter(None, (known.memory_gb, of.memory_gb)), default=0.0)
        self.of_type[self.type_of.get(node, "")] -= 1
        self.of_type[of.name] += 1
        self.types[of.name], self.type_of[node] = replace(of, memory_gb=least_gb), of.name

    def kind_of(self, node: NodeId) -> str:
        """The type of ``node`` as problems count it: slow nodes are a type of their own (no other has a slash)."""
        return self.type_of.get(node, "") + ("/slow" if node in self.slow else "")

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


MOST = 8
"""Most ending nodes in a problem (the first to leave): the time of exact methods grows with its square."""


@dataclass(frozen=True, slots=True)
class ExpiringNodes:
    """Free nodes that leave before ``until_s`` (when the forward-looking time is over), the last to leave first; on
    average they have ``left_s`` left. Their end is known: their job's wall time ends, or the scheduler has planned
    another job on them.

    Each counts only for the time it has left, and the trainer that gets it also pays for a rescale down when it leaves,
    so a rescale onto it must pay off before then. All ending nodes of a problem count with their mean remaining time.
    Nodes that trainers hold are not classified: the rescale onto them has been paid for, and they are worth keeping to
    their end. Nodes that leave together go to one trainer as far as possible: a trainer that loses some of them pays
    for one rescale, however many it loses.

    A single class of a few nodes keeps planners exact: ``dp`` gets a dimension of its size, ``milp`` a constraint.
    """

    nodes: tuple[NodeId, ...] = ()
    left_s: float = 0.0
    until_s: float = -math.inf


NONE_END = ExpiringNodes()


def ending(pool: Pool, now_s: float, t_fwd_s: float) -> ExpiringNodes:
    """The ending nodes of ``pool`` at ``now_s``."""
    if not pool.ends:
        return NONE_END
    until_s = now_s + t_fwd_s
    soon = [node for node in pool.available() if pool.ends_before(node, until_s)]
    soon = sorted(soon, key=pool.ends.__getitem__)[:MOST]
    left_s = fmean(max(0.0, pool.ends[node] - now_s) for node in soon) if soon else 0.0
    return ExpiringNodes(tuple(reversed(soon)), left_s, until_s)


def in_company(pool: Pool, own: Sequence[NodeId], free: Sequence[NodeId], count: int, until_s: float) -> list[NodeId]:
    """``free`` in the order in which a trainer that has ``own`` takes ``count`` of them.

    The fewer times it loses nodes, the fewer rescales it pays for.

    First come those that leave when some of its own do, then those that leave together: the largest groups that it can
    take whole first, and of these those that stay longest. Unless all ends are known, the order is kept: it says more
    about which nodes leave together than a few ends do. What leaves before ``until_s`` comes last in any case.
    """
    if not all(node in pool.ends for node in free):
        return sorted(free, key=lambda node: pool.ends_before(node, until_s))
    with_own = {pool.ends[node] for node in own if node in pool.ends}
    groups = Counter(pool.ends[node] for node in free)
    more = max(0, count - sum(groups[end_s] for end_s in with_own))

    def rank(node: NodeId) -> tuple[bool, bool, int, int, float]:
        end_s = pool.ends[node]
        company = groups[end_s]
        return end_s < until_s, end_s not in with_own, -min(company, more), company, -end_s

    return sorted(free, key=rank)


def all_end_s(pool: Pool, nodes: Sequence[NodeId]) -> float:
    """When the last of ``nodes`` leaves; infinite unless the ends of all are known."""
    return max((pool.ends.get(node, math.inf) for node in nodes), default=math.inf) if pool.ends else math.inf
