"""Which GPUs each trainer gets where a pool's unit is a GPU, so that trainers span few nodes more than they must.

FLEET's Algorithms 2 and 3. Free GPUs are handed out in their order, whole nodes first, to one trainer after the other;
what is chosen is that order. First come trainers who want a multiple of a node's GPUs, then pairs whose rests fill a
node: where whole nodes are free, all of these begin and end with a node. For the others permutations are tried, at most
1,024.

The score is not in the paper's appendix (it is its main part's eq. 7). Ours: over all trainers, the nodes spanned
beyond the least. As printed, lines 11 to 14 pair two trainers with the *same* rest; line 18 shows what is meant: with
the rest that is missing to a whole node. The paper assigns all GPUs anew; here a trainer keeps those that it has.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice, permutations

from pilot.core.ids import NodeId

MOST_PERMUTATIONS = 1024

Host = Callable[[NodeId], int]
"""The number of the node that a GPU is on."""


@dataclass(frozen=True, slots=True)
class GpuNodes:
    """Which GPU is on which node: ``host`` gives its node; each node has ``per_node``."""

    host: Host
    per_node: int

    def spread(self, gpus: Sequence[NodeId]) -> int:
        """How many nodes a trainer's ``gpus`` span beyond the minimum for their number."""
        return len(set(map(self.host, gpus))) - -(-len(gpus) // self.per_node)

    def whole_first(self, free: Sequence[NodeId]) -> list[NodeId]:
        """``free`` in its order, but GPUs of nodes of which more are free come first."""
        free_on = Counter(map(self.host, free))
        return sorted(free, key=lambda gpu: (-free_on[self.host(gpu)], self.host(gpu)))

    def order(self, held: Sequence[Sequence[NodeId]], wants: Sequence[int], free: Sequence[NodeId]) -> list[int]:
        """The order in which trainers that have ``held`` GPUs and want more take them from ``free``."""
        first, rest = _whole_nodes(wants, self.per_node)
        best, least = [*first, *rest], None
        for tried in islice(permutations(rest), MOST_PERMUTATIONS):
            order = [*first, *tried]
            score = sum(
                self.spread([*held[i], *gpus]) for i, gpus in zip(order, _taken(order, wants, free), strict=True)
            )
            if least is None or score < least:
                best, least = order, score
            if not least:
                break
        return best


def _taken(order: Sequence[int], wants: Sequence[int], free: Sequence[NodeId]) -> list[Sequence[NodeId]]:
    """Which GPUs each trainer takes, in ``order`` (``assignGPUs``)."""
    taken, used = [], 0
    for i in order:
        taken.append(free[used : used + wants[i]])
        used += wants[i]
    return taken


def _whole_nodes(wants: Sequence[int], per_node: int) -> tuple[list[int], list[int]]:
    """The trainers that fill whole nodes, alone or in pairs, in the order for that, and the other trainers."""
    alone = [i for i, count in enumerate(wants) if count % per_node == 0]
    waiting: dict[int, list[int]] = {}
    pairs: list[int] = []
    for i, rest in enumerate(count % per_node for count in wants):
        if rest and waiting.get(rest):
            pairs += [i, waiting[rest].pop()]
        elif rest:
            waiting.setdefault(per_node - rest, []).append(i)
    return [*alone, *pairs], sorted(i for those in waiting.values() for i in those)
