"""The rehearsal of a node that joins: in its first step its processes compute the gradients of another node, from the
same samples with the same random numbers. Their gradients do not count, but are compared with the other node's. A node
whose gradients differ leaves, see :mod:`pilot.train.steps.comparison`. (Noise from torch's, NumPy's or Python's
generators is the same on both nodes, because these are seeded alike.)

The other nodes divide the step's samples, as before. They are never fewer than in the last step, because they might not
have enough memory. So nodes that begin together, or replace others, do not rehearse, and if the group's size stays the
same, an epoch has as many steps as the script expects.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pilot.train.data.rehearsal import Rehearsal
from pilot.train.state.state_transfer import Holding, Spreading, Standing


@dataclass(frozen=True, slots=True)
class Newcomers:
    """The newcomers of a group. ``nodes``: nodes that have taken part in no step since they took over a state, the
    newest first; ``reference``: the node with which they are compared, if possible the one that gives them its state;
    ``uncertain``: nodes that were never compared, if others were.
    """

    reference: int = 0
    nodes: tuple[int, ...] = ()
    uncertain: frozenset[int] = frozenset()

    @classmethod
    def of(cls, table: Sequence[Holding], spreading: Spreading, per_node: int) -> Newcomers:
        """Return the newcomers of a group that begins with the states in ``table``; a node has ``per_node`` ranks."""
        takers = dict.fromkeys(taker // per_node for taker in spreading.takers)
        nodes = range(len(table) // per_node)
        of_node = [table[node * per_node : (node + 1) * per_node] for node in nodes]
        standing = {n: min(one.standing for one in of_node[n]) * (n not in takers) for n in nodes}
        best = max(standing.values())
        giver = spreading.root // per_node  # other nodes may have their own buffers, which takers do not get
        reference = giver if standing[giver] == best else next(n for n in nodes if standing[n] == best)
        new = [*takers, *(n for n in nodes if n not in takers and standing[n] == Standing.NEW)]
        uncertain = [n for n in nodes if standing[n] < Standing.COMPARED] if best == Standing.COMPARED else []
        return cls(reference, tuple(n for n in new if n != reference), frozenset(uncertain))

    def rehearsal(self, size: int, per_node: int, parts: int) -> Rehearsal | None:
        """Return the rehearsal in the first step of a group of ``size`` ranks; None if no node rehearses. ``parts``:
        the number of ranks that divided the last step's samples; 0: there was none.
        """
        nodes = size // per_node
        most = nodes - parts // per_node if parts else 0
        rehearsing = frozenset(self.nodes[: max(0, most)])
        return Rehearsal(nodes, per_node, self.reference, rehearsing) if rehearsing else None
