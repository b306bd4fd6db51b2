"""Which nodes count as slow for their type.

A node that does less than three quarters of what its type does, for two minutes, is planned for as a type of its own
until it has done more for as long. What its type does is said by the trainer's other nodes
(:meth:`pilot.core.curves.speeds.Speeds.shares`).
"""

from __future__ import annotations

from collections.abc import Mapping

from pilot.core.commands import MarkNodeSlow
from pilot.core.ids import NodeId, TrainerId
from pilot.core.pool.node_type import SlowNode
from pilot.core.pool.pool import Pool

SLOW = 0.75
"""A node that does less than this share of what its type does is slow."""

FOR_S = 120.0
"""A node counts as slow, or no longer, after it was measured so for this long; also the longest gap in that."""


def judge(now_s: float, pool: Pool, trainer: TrainerId, shares: Mapping[NodeId, float]) -> list[MarkNodeSlow]:
    """Record the ``shares`` of their types that nodes do, as measured by ``trainer``; returns what changes."""
    changed = []
    for node, share in shares.items():
        slow = share < SLOW
        if slow is (node in pool.slow):
            pool.contradicted.pop(node, None)
            continue
        since_s, last_s = pool.contradicted.get(node, (now_s, now_s))
        since_s = since_s if now_s - last_s <= FOR_S else now_s
        pool.contradicted[node] = since_s, now_s
        if now_s - since_s >= FOR_S:
            del pool.contradicted[node]
            if slow:
                pool.slow[node] = SlowNode(now_s, share, trainer)
            else:
                del pool.slow[node]
            does = f"it does {share:.0%} of what {pool.type_of.get(node) or 'other'} nodes do for {trainer}"
            changed.append(
                MarkNodeSlow(node, slow, f"{node} {'counts' if slow else 'no longer counts'} as slow: {does}")
            )
    return changed
