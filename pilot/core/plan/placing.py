"""Whether trainers that need a certain number of nodes fit together on nodes of several types."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice, permutations

from pilot.core.plan.problem import ByType, Candidate

ORDERS = 24
"""So many orders of the types are tried for each trainer: all of up to four types."""
TRIES = 2000
"""After so many dead ends the trainers count as too many."""


def place(candidates: Sequence[Candidate], there: ByType) -> list[ByType] | None:
    """Nodes for each: its pin, or else the fewest that it runs on, of types that it can use, those that it holds first.
    None: they do not fit together, as far as a bounded search can tell."""
    order = sorted(range(len(candidates)), key=lambda j: sum(speed > 0 for speed in candidates[j].speeds))
    tried = islice(_placements([candidates[j] for j in order], there), TRIES)
    placed = next((placed for placed in tried if placed is not None), None)
    return None if placed is None else [nodes for _, nodes in sorted(zip(order, placed, strict=True))]


def _placements(candidates: Sequence[Candidate], there: ByType) -> Iterator[list[ByType] | None]:
    """All ways in which they fit; None for each dead end."""
    if not candidates:
        yield []
        return
    ways = _ways(candidates[0], there)
    if not ways:
        yield None
    for way in ways:
        left = tuple(nodes - taken for nodes, taken in zip(there, way, strict=True))
        for placed in _placements(candidates[1:], left):
            yield None if placed is None else [way, *placed]


def _ways(c: Candidate, there: ByType) -> list[ByType]:
    """Its nodes: as many of one type as there are, then of another, in all orders."""
    count = c.pin if c.pin is not None else next((n for n in c.sizes or (c.min_nodes,) if c.allows(n)), c.min_nodes)
    usable = sorted((k for k, speed in enumerate(c.speeds) if speed > 0), key=lambda k: -c.held[k])
    ways = dict[ByType, None]()
    for order in islice(permutations(usable), ORDERS):
        way, missing = [0] * len(there), count
        for k in order[:1] if c.one_type else order:
            way[k] = min(missing, there[k])
            missing -= way[k]
        if not missing:
            ways[tuple(way)] = None
    return list(ways)
