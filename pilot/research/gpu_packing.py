"""Which GPUs each trainer gets if a pool's unit is a GPU (FLEET's Algorithms 2 and 3)."""

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
    """Which GPU is on which node, if a pool's unit is a GPU: ``host`` gives its node; each node has ``per_node``.

    Trainers get GPUs so that they span few more nodes than necessary (FLEET's Algorithms 2 and 3). Free GPUs are handed
    out in order, whole nodes first, to one trainer after the other; the decision is the order of the trainers. First
    come those that want a multiple of a node's GPUs, then pairs whose remainders fill a node: if whole nodes are free,
    all of these begin and end at node boundaries. For the others up to 1,024 permutations are tried.

    The score is not in the paper's appendix (it is eq. 7 of the main part). Ours is the number of nodes spanned beyond
    the minimum, over all trainers. As printed, lines 11 to 14 pair two trainers with the *same* remainder; line 18
    shows that remainders should add up to a whole node. The paper reassigns all GPUs; here a trainer keeps what it
    has.
    """

    host: Host
    per_node: int

    def spread(self, gpus: Sequence[NodeId]) -> int:
        """How many nodes a trainer's ``gpus`` span beyond the minimum for their number."""
        return len(set(map(self.host, gpus))) - -(-len(gpus) // self.per_node)

    def __call__(
        self, held: Sequence[Sequence[NodeId]], wants: Sequence[int], free: Sequence[NodeId]
    ) -> tuple[list[int], list[NodeId]]:
        """The order in which trainers that have ``held`` GPUs take ``wants`` more, and that of the ``free`` GPUs."""
        ordered = self.whole_first(free)
        return self.order(held, wants, ordered), ordered

    def whole_first(self, free: Sequence[NodeId]) -> list[NodeId]:
        """``free`` in its order, but GPUs of nodes with more free ones come first."""
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
    """The trainers that fill whole nodes, alone or in pairs, in the order in which they do, and the other trainers."""
    alone = [i for i, count in enumerate(wants) if count % per_node == 0]
    waiting: dict[int, list[int]] = {}
    pairs: list[int] = []
    for i, rest in enumerate(count % per_node for count in wants):
        if rest and waiting.get(rest):
            pairs += [i, waiting[rest].pop()]
        elif rest:
            waiting.setdefault(per_node - rest, []).append(i)
    return [*alone, *pairs], sorted(i for those in waiting.values() for i in those)
