"""A node that joins rehearses: in its first step its processes compute what those of another node compute, from the
same samples with the same random numbers. Their gradients do not count, and are compared with the other's. A node whose
gradients differ leaves, see :mod:`pilot.train.steps.comparison`. (Noise that each rank draws from torch's, NumPy's or
Python's generators is the same on both, as these are seeded alike.)

The others divide the step's samples, as they did before the node came. There are never fewer of them than divided the
last step: they might not have the memory for it. So of nodes that begin together, or replace others, none rehearses,
and if the group's size stays the same, an epoch has as many steps as the script expects.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pilot.train.data.rehearsal import Rehearsal
from pilot.train.state.state_transfer import Holding, Spreading, Standing


@dataclass(frozen=True, slots=True)
class Newcomers:
    """``nodes``: those of a group that have taken part in no step since they took over a state, first those that have
    just done so; ``reference``: the node with which they are compared, if possible the one that gives them its state;
    ``uncertain``: nodes that others were compared with are there, but not these.
    """

    reference: int = 0
    nodes: tuple[int, ...] = ()
    uncertain: frozenset[int] = frozenset()

    @classmethod
    def of(cls, table: Sequence[Holding], spreading: Spreading, per_node: int) -> Newcomers:
        """From what each rank holds when a group begins; a node has ``per_node`` ranks."""
        takers = dict.fromkeys(taker // per_node for taker in spreading.takers)
        nodes = range(len(table) // per_node)
        of_node = [table[node * per_node : (node + 1) * per_node] for node in nodes]
        standing = {n: min(one.standing for one in of_node[n]) * (n not in takers) for n in nodes}
        best = max(standing.values())
        giver = spreading.root // per_node  # others may have buffers of their own, which takers do not get
        reference = giver if standing[giver] == best else next(n for n in nodes if standing[n] == best)
        new = [*takers, *(n for n in nodes if n not in takers and standing[n] == Standing.NEW)]
        uncertain = [n for n in nodes if standing[n] < Standing.COMPARED] if best == Standing.COMPARED else []
        return cls(reference, tuple(n for n in new if n != reference), frozenset(uncertain))

    def rehearsal(self, size: int, per_node: int, parts: int) -> Rehearsal | None:
        """For the first step of a group of ``size`` ranks; the last step's samples were divided among ``parts`` (0:
        there was none). None: nobody rehearses.
        """
        nodes = size // per_node
        most = nodes - parts // per_node if parts else 0
        rehearsing = frozenset(self.nodes[: max(0, most)])
        return Rehearsal(nodes, per_node, self.reference, rehearsing) if rehearsing else None
