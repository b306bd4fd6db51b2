"""Types of nodes: how fast trainers are on each, which of them they can use, and which nodes are slow for theirs.

A trainer's curve is that of nodes of its reference type. A rate that a group measures on other nodes is converted to
one on its reference type before it enters the curve (:mod:`pilot.core.curves.mixed`). Where the planner cannot tell
types apart (``CoordinatorConfig.typed``), all nodes count as alike, and rates as they are measured.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from pilot.core import events
from pilot.core.bookkeeping import Bookkeeping
from pilot.core.commands import Command
from pilot.core.curves.curve import is_rate
from pilot.core.curves.mixed import reference_rate
from pilot.core.curves.speeds import NO_LEVELS, Speed, TypeLevels, type_levels
from pilot.core.ids import NodeId
from pilot.core.plan.objective import IN_NODES
from pilot.core.plan.problem import Candidate
from pilot.core.pool.evidence import headline
from pilot.core.pool.node_type import type_of
from pilot.core.pool.slow import judge
from pilot.core.trainer.trainer import Trainer, WorkerPhase


class NodeTypes(Bookkeeping):
    """The types of the pool's nodes, and what is known of trainers on them."""

    # --- what is measured -------------------------------------------------------------------------------------------

    def _speeds_measured(self, event: events.SpeedsMeasured) -> list[Command]:
        """Record which nodes are slow, and how fast the trainer is on each type. Nodes are measured as what they count
        as: one that differs from that is left out until it is known."""
        trainer = self._registry.open.get(event.trainer)
        if trainer is None or trainer.group is None or trainer.group.generation != event.generation:
            return []
        per_s = {n: rate for n, rate in event.per_s if n in trainer.members and is_rate(rate) and rate > 0}
        kinds = {node: self.pool.kind_of(node) for node in per_s}
        trainer.speeds.refer(kinds.values())
        shares = trainer.speeds.shares(per_s, kinds)
        marked = judge(self.now_s, self.pool, trainer.id, shares)
        kinds = {node: self.pool.kind_of(node) for node in per_s if node not in self.pool.contradicted}
        trainer.speeds.note(len(per_s), {node: per_s[node] for node in kinds}, kinds, equal=event.equal_shares)
        self._touch(trainer.id, measured=True)
        if marked and self.config.typed:
            self._replan = "; ".join(command.reason for command in marked)
        return [*marked]

    def _referred(self, event: events.Progress) -> events.Progress:
        """``event`` with the rate that its group would have on nodes of the trainer's reference type."""
        trainer, rate = self.trainers.get(event.trainer), event.samples_per_s
        if trainer is None or trainer.group is None or not (self.config.typed and rate):
            return event
        kinds = [self.pool.kind_of(node) for node in trainer.members]
        trainer.speeds.refer(kinds)
        if not trainer.spec.speeds and all(kind == trainer.speeds.reference for kind in kinds):
            return event
        speeds, nodes = self._speeds(trainer, kinds), len(kinds)
        each = [speeds[kind].value for kind in kinds]
        effective = nodes * min(each) if trainer.speeds.equal_shares else math.fsum(each)
        measured = trainer.measured
        alone = None if measured.guessed else measured.planned.single_node_rate()
        return replace(event, samples_per_s=reference_rate(rate, nodes, effective, alone))

    def _levels(self) -> TypeLevels:
        return type_levels([trainer.speeds for trainer in self.trainers.values()])

    def _speeds(self, trainer: Trainer, kinds: Sequence[str], levels: TypeLevels | None = None) -> dict[str, Speed]:
        """The trainer's speeds on nodes that count as ``kinds``."""
        if levels is None:
            known = trainer.speeds.rates.keys()
            levels = NO_LEVELS if known >= {*kinds, trainer.speeds.reference} else self._levels()
        return trainer.speeds.on(kinds, levels, dict(trainer.spec.speeds))

    # --- what trainers can use --------------------------------------------------------------------------------------

    def unfit(self, trainer: Trainer) -> str:
        """Why ``trainer`` can use none of the pool's nodes, by their types; "": it can, or there are none."""
        names = sorted(name for name, nodes in self.pool.of_type.items() if nodes)
        reasons = [trainer.unfit(self.pool, name) for name in names]
        return "; ".join(dict.fromkeys(reasons)) if all(reasons) else ""

    def speeds(self, trainer: Trainer) -> dict[str, Speed]:
        """The trainer's speeds on nodes of the types that plans tell apart now."""
        return self._speeds(trainer, list(self._usable_by_type()))

    def stranded(self) -> list[Trainer]:
        """The trainers that wait and can use none of the pool's nodes, by their types."""
        choosy = (t for t in self._registry.plannable() if t.spec.types or t.spec.memory_gb or t.excluded)
        return [trainer for trainer in choosy if not trainer.target and self.unfit(trainer)]

    def _kind_to_start(self, trainer: Trainer) -> str | None:
        """The type of nodes on which ``trainer`` is fastest and its minimum is free; None: there is none, or one
        type."""
        avoided, least = trainer.avoided(self.pool), trainer.spec.min_nodes
        if not self._usable_by_type():
            return None
        free = Counter(self.pool.kind_of(node) for node in self.pool.available() if node not in avoided)
        speeds = self._speeds(trainer, sorted(kind for kind, nodes in free.items() if nodes >= least))
        return max(speeds, key=lambda kind: speeds[kind].value, default=None)

    def _worker_exited(self, event: events.WorkerExited) -> list[Command]:
        return super()._worker_exited(replace(event, out_of_memory=self._excluded(event)))

    def _excluded(self, event: events.WorkerExited) -> bool:
        """Exclude the type of the node for a trainer that ran out of memory there, if it is not the only type."""
        trainer, name = self._registry.open.get(event.trainer), self.pool.type_of.get(event.node)
        worker = trainer.workers.get(event.node) if trainer is not None else None
        several = event.out_of_memory and self.config.typed and len(self.pool.types) > 1
        if not (several and trainer and worker and name) or worker.phase is WorkerPhase.STOPPING:
            return False
        trainer.excluded[name] = f"it ran out of memory on {name}: {headline(event.detail)}"
        for node in [node for node in trainer.target if self.pool.type_of.get(node) == name]:
            trainer.target.remove(node)
            del self.pool.owner[node]
        return True

    # --- what planners see ------------------------------------------------------------------------------------------

    def _usable_by_type(self) -> dict[str, int]:
        """How many nodes of each type plans may count on; none if there is one type, or they cannot tell."""
        pool = self.pool
        if not self.config.typed or not (pool.slow or len(pool.types) > 1 or 0 < len(pool.type_of) < len(pool)):
            return {}
        found = Counter(pool.kind_of(node) for node in pool.counted())
        return {kind: found[kind] for kind in sorted(found)} if len(found) > 1 else {}

    def _left_by_type(self, usable: Mapping[str, int], useless: Sequence[NodeId], reserved: int) -> dict[str, int]:
        """The nodes without those that nobody can use, and ``reserved`` free ones of the types that have most of
        these."""
        left = Counter(dict(usable))
        left.subtract(self.pool.kind_of(node) for node in useless)
        free = Counter(self.pool.kind_of(node) for node in self.pool.available() if node not in useless)
        for _ in range(min(reserved, free.total())):
            kind = max(sorted(free), key=free.__getitem__)
            left[kind] -= 1
            free[kind] -= 1
        return {kind: left[kind] for kind in usable}

    def _plan_speeds(self, trainers: Sequence[Trainer], kinds: Sequence[str]) -> None:
        """Update the speeds to plan with; curves reach as far as the fastest nodes can take them."""
        levels = self._levels()
        for trainer in trainers:
            planned = trainer.speeds.plan_with(self._speeds(trainer, kinds, levels))
            fastest = math.ceil(math.log2(max(1.0, *planned.values())))
            trainer.measured.extend(trainer.spec.max_nodes << fastest)

    def _typed(self, candidate: Candidate, trainer: Trainer, nodes: Mapping[str, int]) -> Candidate:
        """``candidate`` as planners see it who have several types of ``nodes``. An objective in units of one node of
        each trainer's own is in units of the pool's mean node, because trainers' reference types differ."""
        held, planned = Counter(map(self.pool.kind_of, trainer.target)), trainer.speeds.planned
        total, mean = sum(nodes.values()), sum(planned[kind] * count for kind, count in nodes.items())
        relative = self.config.objective in IN_NODES and trainer.spec.objective_curve is None and total
        return replace(
            candidate,
            value=candidate.value.scaled(total / mean) if relative else candidate.value,
            held=tuple(held[kind] for kind in nodes),
            speeds=tuple(0.0 if trainer.unfit(self.pool, type_of(kind)) else planned[kind] for kind in nodes),
            one_type=trainer.speeds.equal_shares,
        )
