"""Which samples of an epoch each node gets in a round of seldom-synchronised training, and what goes back.

The samples of an epoch that are not trained on yet are those from ``cursor`` on, and ranges before it that were put
back. In each round every node is dealt whole batches of them, those that were put back first, and uses them in order.
When the round ends, the batches that each node has used are *committed*, and all others go back. So at the end of an
epoch its samples have been committed exactly once, whatever happened. (All functions are pure, and the same on all
nodes.)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

from pilot.train.data.sampler import evenly_before

Range = tuple[int, int]
"""Samples [start, stop), as positions in the epoch."""


def batches(ranges: Iterable[Sequence[int]], batch: int) -> list[Range]:
    """Return the batches of ``batch`` samples into which ``ranges`` are cut; a range's last one may be smaller."""
    return [(at, min(at + batch, stop)) for start, stop in ranges for at in range(start, stop, batch)]


def merged(ranges: Iterable[Range]) -> list[Range]:
    """Return ``ranges``, which are disjoint, in order, with adjacent ones joined."""
    joined: list[Range] = []
    for start, stop in sorted(ranges):
        if joined and joined[-1][1] == start:
            joined[-1] = joined[-1][0], stop
        elif stop > start:
            joined.append((start, stop))
    return joined


def dealt(
    cursor: int, back: Sequence[Sequence[int]], length: int, batch: int, nodes: int, every: int
) -> tuple[list[list[Range]], int, list[Range]]:
    """Deal a round to ``nodes``: return the batches of each node, at most ``every``, and the cursor and the ranges that
    were put back afterwards. If fewer are left than all could use, each node gets the same number, or one less.

    Parameters
    ----------
    cursor, back : the samples that are left: from ``cursor`` to ``length``, and ``back``, sorted
    length : samples in the epoch
    batch : samples in a batch of one node
    """
    wanted = nodes * every
    again = batches(back, batch)
    taken = again[:wanted]
    end = min(length, cursor + (wanted - len(taken)) * batch)
    taken += batches([(cursor, end)], batch)
    ends = [evenly_before(len(taken), node, nodes) for node in range(nodes + 1)]
    deals = [taken[start:stop] for start, stop in pairwise(ends)]
    return deals, max(cursor, end), merged(again[wanted:])


def closed(
    deals: Sequence[Sequence[Range]], used: Sequence[int], back: Sequence[Range]
) -> tuple[list[Range], list[Range]]:
    """End a round in which each node has ``used`` so many batches of its deal: return the ranges that are committed,
    and those that are left before the cursor, with ``back`` from before.
    """
    committed = [one for deal, count in zip(deals, used, strict=True) for one in deal[:count]]
    unused = [one for deal, count in zip(deals, used, strict=True) for one in deal[count:]]
    return merged(committed), merged([*back, *unused])
