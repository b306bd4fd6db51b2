"""Whether trainers that need a certain number of nodes fit together on nodes of several types."""

from __future__ import annotations

from collections.abc import Sequence

from pilot.core.plan.problem import ByType, Candidate


def place(candidates: Sequence[Candidate], there: ByType) -> list[ByType] | None:
    """Nodes for each: its pin, or else the fewest that it runs on. Those that can use few types choose first: the types
    that they hold, then those that few others can use. None: they do not all find some in this way."""
    rivals = [sum(c.speeds[k] > 0 for c in candidates) for k in range(len(there))]
    counts = [c.pin if c.pin is not None else (c.sizes or (c.min_nodes,))[0] for c in candidates]
    usable = [sum(speed > 0 for speed in c.speeds) for c in candidates]
    found = dict[int, ByType]()
    for j in sorted(range(len(candidates)), key=lambda j: (usable[j], -counts[j], candidates[j].trainer)):
        held = candidates[j].held
        given = candidates[j].take(counts[j], there, sorted(range(len(there)), key=lambda k: (-held[k], rivals[k])))
        if given is None:
            return None
        found[j], there = given, tuple(n - taken for n, taken in zip(there, given, strict=True))
    return [found[j] for j in range(len(candidates))]
