"""Free nodes whose end is known: their job's wall time ends, or the scheduler has planned another job on them.

A free node that is sure to leave within the forward-looking time is *ending*: it counts only for the time it has left,
and the trainer that gets it also pays for a rescale down when it leaves. So a rescale onto it must pay off before then.
All ending nodes of a problem count with their mean remaining time. Nodes that trainers hold are not classified: the
rescale onto them has been paid for, and they are worth keeping to their end. Nodes that leave together go to one
trainer as far as possible: a trainer that loses some of them pays for one rescale, however many it loses.

A single class of a few nodes keeps planners exact: ``dp`` gets a dimension of its size, ``milp`` a constraint.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from pilot.core.ids import NodeId
from pilot.core.pool import Pool

MOST = 8
"""Most ending nodes in a problem (the first to leave): the time of exact methods grows with its square."""


@dataclass(frozen=True, slots=True)
class Ending:
    """Free nodes that leave before ``until_s`` (when the forward-looking time is over), the last to leave first; on
    average they have ``left_s`` left.
    """

    nodes: tuple[NodeId, ...] = ()
    left_s: float = 0.0
    until_s: float = -math.inf


NONE_END = Ending()


def ending(pool: Pool, now_s: float, t_fwd_s: float) -> Ending:
    """The ending nodes of ``pool`` at ``now_s``."""
    if not pool.ends:
        return NONE_END
    until_s = now_s + t_fwd_s
    soon = [node for node in pool.available() if pool.ends_before(node, until_s)]
    soon = sorted(soon, key=pool.ends.__getitem__)[:MOST]
    left_s = fmean(max(0.0, pool.ends[node] - now_s) for node in soon) if soon else 0.0
    return Ending(tuple(reversed(soon)), left_s, until_s)


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
