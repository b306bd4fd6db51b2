"""Types of nodes: how fast trainers are on each, which of them they can use, and which nodes are slow for theirs.

A trainer's curve is that of nodes of its reference type. A rate that a group measures on other nodes is converted to
one on its reference type before it enters the curve (:mod:`pilot.core.curves.mixed`). Where the planner cannot tell
types apart (``CoordinatorConfig.typed``), all nodes count as alike, and rates as they are measured.

A node that does less than three quarters of what its type does, for two minutes, is planned for as a type of its own
until it has done more for as long.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cache
from itertools import islice

from pilot.core import events
from pilot.core.bookkeeping import Bookkeeping
from pilot.core.commands import Command, MarkNodeSlow
from pilot.core.curves.curve import is_rate
from pilot.core.curves.mixed import reference_rate
from pilot.core.curves.speeds import Speed, speed
from pilot.core.ids import NodeId, TrainerId
from pilot.core.plan.objective import IN_NODES
from pilot.core.plan.problem import Candidate
from pilot.core.pool.evidence import headline
from pilot.core.pool.node_type import SlowNode, type_of
from pilot.core.pool.pool import Pool
from pilot.core.trainer.trainer import Trainer, WorkerPhase

NEWEST = 50
"""What is expected of a trainer comes from the newest so many."""

LEAST_MOVE = 0.05
"""A speed that has moved by less than this, relative, asks for no plan."""

SLOW = 0.75
"""A node that does less than this share of what its type does is slow."""

FOR_S = 120.0
"""A node counts as slow, or no longer, after it was measured so for this long; also the longest gap in that."""


class NodeTypes(Bookkeeping):
    """The types of the pool's nodes, and what is known of trainers on them."""

    def _speeds_measured(self, event: events.SpeedsMeasured) -> list[Command]:
        """Record which nodes are slow, and how fast the trainer is on each type, without nodes that may become slow."""
        trainer, pool = self._registry.open.get(event.trainer), self.pool
        if trainer is None or trainer.group is None or trainer.group.generation != event.generation:
            return []
        per_s = {n: rate for n, rate in event.per_s if n in trainer.members and is_rate(rate) and rate > 0}
        if not per_s:
            return []
        kinds = {node: pool.kind_of(node) for node in per_s}
        marked = judge(self.now_s, pool, trainer.id, trainer.speeds.shares(per_s, kinds))
        rates: dict[str, list[float]] = {}
        for node in [node for node in per_s if node not in pool.contradicted]:
            rates.setdefault(pool.kind_of(node), []).append(per_s[node])
        trainer.speeds.refer([*kinds.values()])
        trainer.speeds.note(len(per_s), rates, equal=event.equal_shares)
        self._touch(trainer.id, measured=True)
        self._replan = "; ".join(command.reason for command in marked) if self.config.typed else ""
        return [*marked]

    def _referred(self, event: events.Progress) -> events.Progress:
        """``event`` with the rate that its group would have on nodes of the trainer's reference type."""
        trainer, rate = self.trainers.get(event.trainer), event.samples_per_s
        if trainer is None or trainer.group is None or not (self.config.typed and rate):
            return event
        kinds = [self.pool.kind_of(node) for node in trainer.members]
        trainer.speeds.refer(kinds)
        speeds, measured, nodes = self.speeds(trainer, kinds), trainer.measured, len(kinds)
        each = [speeds[kind].value for kind in kinds]
        effective = nodes * min(each) if trainer.speeds.equal_shares else math.fsum(each)
        if effective == nodes:
            return event
        alone = None if measured.guessed else measured.planned.single_node_rate()
        return replace(event, samples_per_s=reference_rate(rate, nodes, effective, alone))

    def speeds(self, trainer: Trainer, kinds: Iterable[str] | None = None) -> dict[str, Speed]:
        """The trainer's speeds on nodes that count as ``kinds``; None: all types that plans tell apart now."""
        several = (t.speeds for t in reversed(self.trainers.values()) if len(t.speeds.counts) > 1)
        others, given = cache(lambda: list(islice(several, NEWEST))), dict(trainer.spec.speeds)
        asked = self._by_type() if kinds is None else kinds
        return {kind: speed(trainer.speeds, kind, others, given) for kind in asked}

    def _speeds_moved(self, trainer: Trainer) -> bool:
        """Whether measurements contradict what the last problem says of its speeds and shares."""
        problem = self.problem
        if problem is None or not problem.types:
            return False
        candidate = next((c for c in problem.candidates if c.trainer == trainer.id), None)
        if candidate is None:
            return False
        now, nodes = self.speeds(trainer, problem.types), dict(zip(problem.types, problem.types_nodes, strict=True))
        pairs = [(now[kind], planned) for kind, planned in zip(nodes, candidate.speeds, strict=True) if planned]
        moved = (s.measured and abs(math.log(s.value / planned)) > max(LEAST_MOVE, s.error) for s, planned in pairs)
        return candidate.one_type is not self._of_one_type(trainer, nodes) or any(moved)

    # --- what trainers can use --------------------------------------------------------------------------------------

    def unfit(self, trainer: Trainer) -> str:
        """Why ``trainer`` can use none of the pool's nodes, by their types; "": it can, or there are none."""
        reasons = [trainer.unfit(self.pool, name) for name in sorted(self.pool.of_type) if self.pool.of_type[name]]
        return "; ".join(dict.fromkeys(reasons)) if all(reasons) else ""

    def fits(self, trainer: Trainer) -> bool:
        """Whether ``trainer`` has nodes, or could use some of the pool's, by their types."""
        choosy = trainer.spec.types or trainer.spec.memory_gb or trainer.excluded
        return bool(trainer.target) or not (choosy and self.unfit(trainer))

    def stranded(self) -> list[Trainer]:
        """The trainers that wait and can use none of the pool's nodes, by their types."""
        return [trainer for trainer in self._registry.plannable() if not self.fits(trainer)]

    def _worker_exited(self, event: events.WorkerExited) -> list[Command]:
        """A trainer that ran out of memory on a node cannot use its type, unless it is the pool's only one."""
        trainer, name = self._registry.open.get(event.trainer), self.pool.type_of.get(event.node)
        worker = trainer.workers.get(event.node) if trainer is not None else None
        excludes = event.out_of_memory and name and self.config.typed and len(self.pool.types) > 1
        if not excludes or trainer is None or worker is None or worker.phase is WorkerPhase.STOPPING:
            return super()._worker_exited(replace(event, out_of_memory=False))
        trainer.excluded[str(name)] = f"it ran out of memory on {name}: {headline(event.detail)}"
        for node in filter(trainer.avoids(self.pool), list(trainer.target)):
            trainer.target.remove(node)
            del self.pool.owner[node]
        return super()._worker_exited(event)

    # --- what planners see ------------------------------------------------------------------------------------------

    def _by_type(self) -> dict[str, int]:
        """How many nodes of each type plans may count on; none if there is one type, or they cannot tell."""
        pool = self.pool
        if not self.config.typed or not (pool.slow or sum(nodes > 0 for nodes in pool.of_type.values()) > 1):
            return {}
        found = Counter(pool.kind_of(node) for node in pool.counted())
        return {kind: found[kind] for kind in sorted(found)} if len(found) > 1 else {}

    def _extend_curve(self, trainer: Trainer, types: Iterable[str]) -> None:
        """Have its curve reach as far as the fastest nodes can take it."""
        fastest = max((speed.value for speed in self.speeds(trainer, types).values()), default=1.0)
        trainer.measured.extend(trainer.spec.max_nodes << math.ceil(math.log2(max(1.0, fastest))))

    def _typed(self, candidate: Candidate, trainer: Trainer, nodes: Mapping[str, int]) -> Candidate:
        """``candidate`` as planners see it who have several types of ``nodes``. An objective in units of one node of
        each trainer's own is in units of the pool's mean node, because trainers' reference types differ."""
        held, speeds = Counter(map(self.pool.kind_of, trainer.target)), self.speeds(trainer, nodes)
        mean = sum(speeds[kind].value * count for kind, count in nodes.items()) / max(1, sum(nodes.values()))
        relative = self.config.objective in IN_NODES and trainer.spec.objective_curve is None and mean > 0
        return replace(
            candidate,
            value=candidate.value.scaled(1.0 / mean) if relative else candidate.value,
            held=tuple(held[kind] for kind in nodes),
            speeds=tuple(0.0 if trainer.unfit(self.pool, type_of(kind)) else speeds[kind].value for kind in nodes),
            one_type=self._of_one_type(trainer, nodes),
        )

    def _of_one_type(self, trainer: Trainer, nodes: Mapping[str, int]) -> bool:
        """Whether all its nodes must be of one type: its shares are equal, and one type has as many as it needs."""
        fit = (count for kind, count in nodes.items() if not trainer.unfit(self.pool, type_of(kind)))
        return trainer.speeds.equal_shares and max(fit, default=0) >= trainer.spec.min_nodes


def judge(now_s: float, pool: Pool, trainer: TrainerId, shares: Mapping[NodeId, float]) -> list[MarkNodeSlow]:
    """Record the ``shares`` of their types that nodes do, as measured by ``trainer``; returns what changes. What a type
    does is said by the trainer's other nodes (:meth:`pilot.core.curves.speeds.Speeds.shares`)."""
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
