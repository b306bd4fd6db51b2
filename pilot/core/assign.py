"""From counts to nodes: who gives back which node, who gets which (without migration, FreeTrain §3.3.3)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pilot.core.ids import NodeId, TrainerId
from pilot.core.pool import Pool
from pilot.core.trainer import Trainer


def assign(pool: Pool, trainers: Sequence[Trainer], counts: Mapping[TrainerId, int]) -> list[Trainer]:
    """Set the targets of ``trainers`` (in submission order) so that each has its count; the changed ones are returned.

    A trainer that shrinks keeps a subset of its nodes, one that grows keeps them all, so nothing migrates (eq. 6).
    Nodes that change hands go in the pool's node order. A parked trainer that gets nothing keeps the nodes that nobody
    else wants: with one more of them it can go on from the state that it holds in memory.
    """
    changed = [t for t in trainers if counts.get(t.id, 0) != len(t.target)]
    growing = [t for t in changed if counts.get(t.id, 0) > len(t.target)]
    parked = [t for t in changed if counts.get(t.id, 0) == 0 and t.parked]
    for trainer in changed:
        if trainer not in parked:
            _give_back(pool, trainer, counts.get(trainer.id, 0))
    wanted = sum(counts[t.id] - len(t.target) for t in growing)
    for trainer in parked:
        missing = max(0, wanted - len(pool.available()))
        _give_back(pool, trainer, max(0, len(trainer.target) - missing))
    free = iter(pool.available() if growing else [])
    for trainer in growing:
        _hand_out(pool, trainer, [next(free) for _ in range(counts[trainer.id] - len(trainer.target))])
    return changed


def _give_back(pool: Pool, trainer: Trainer, count: int) -> None:
    """Take nodes until ``count`` are left: those without state first, so that a shrink never loses a state."""
    surplus = len(trainer.target) - count
    if surplus <= 0:
        return
    ordered = pool.in_order(trainer.target)
    ordered.sort(key=lambda node: trainer.holds_state(node))
    given = ordered[:surplus]
    trainer.target = [n for n in trainer.target if n not in given]
    for node in given:
        del pool.owner[node]


def _hand_out(pool: Pool, trainer: Trainer, nodes: list[NodeId]) -> None:
    trainer.target.extend(nodes)
    for node in nodes:
        pool.owner[node] = trainer.id
