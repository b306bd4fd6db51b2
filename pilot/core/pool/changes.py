"""Records that nodes joined, got a notice or were lost: in the pool, and for the trainers that were on them."""

from __future__ import annotations

import math
from collections.abc import Mapping

from pilot.core.commands import Command
from pilot.core.events import PoolChanged
from pilot.core.ids import NodeId, TrainerId
from pilot.core.pool.blame import Blame
from pilot.core.pool.pool import Pool
from pilot.core.trainer.actions import dissolve_broken
from pilot.core.trainer.trainer import Trainer


class PoolChange:
    """One change of ``pool``. After :meth:`note`: ``counts``: whether another plan is needed; ``touched``: the affected
    trainers; ``vacant``: leaving nodes that may have no worker; ``lost``: how many nodes trainers lose."""

    def __init__(self, pool: Pool, trainers: Mapping[TrainerId, Trainer], blame: Blame) -> None:
        self.counts = False
        self.lost = 0
        self.touched: dict[TrainerId, None] = {}
        self.vacant: dict[NodeId, None] = {}
        self._pool, self._trainers, self._blame = pool, trainers, blame

    def note(self, event: PoolChanged, *, draining: bool) -> list[Command]:
        """Record ``event``; groups that cannot continue are dissolved at once."""
        went = [n for n in event.lost if self._lose(n)]
        came = [n for n in event.joined if self._pool.join(n)]
        for node, of in event.types:
            if node in self._pool:
                self._pool.know_type(node, of)
        stays = [n for n, at_s in event.ends if self._stays_longer(n, at_s)]
        for node, at_s in event.ends:
            self._pool.know_end(node, at_s)
        went += [n for n in event.noticed if self._noticed(n, event.deadline_s)]
        if draining:  # their registration was on its way when the drain began
            for node in came:
                self._pool.leave(node, None)
                self.vacant[node] = None
        self.counts = bool(came or went or stays)
        for trainer_id in self.touched:
            trainer = self._trainers[trainer_id]
            trainer.target = [node for node in trainer.target if self._pool.owner.get(node) == trainer_id]
            trainer.measured.wipeouts += trainer.lost_all(self._pool, set(went))
        return [c for trainer_id in self.touched for c in dissolve_broken(self._trainers[trainer_id])]

    def _stays_longer(self, node: NodeId, at_s: float | None) -> bool:
        """Whether a free ``node`` stays longer than plans assumed."""
        known_s = self._pool.ends.get(node, math.inf)
        return self._pool.is_free(node) and (math.inf if at_s is None else at_s) > known_s

    def _noticed(self, node: NodeId, deadline_s: float | None) -> bool:
        """Record that ``node`` got a notice; it leaves its owner's target."""
        owner, occupant = self._pool.owner.get(node), self._pool.occupant.get(node)
        if not self._pool.leave(node, deadline_s):
            return False
        self.vacant[node] = None
        self.lost += owner is not None
        if occupant is not None:
            self._trainers[occupant].counts.preemptions += 1
        self._touch(owner, occupant)
        return True

    def _lose(self, node: NodeId) -> bool:
        """Record that ``node`` is gone; returns whether plans still counted on it (not if it had got a notice)."""
        owner, occupant = self._pool.owner.get(node), self._pool.occupant.get(node)
        announced = node in self._pool.leaving
        if not self._pool.remove(node):
            return False
        self._blame.forget(node)
        self.lost += owner is not None
        if occupant is not None:
            self._trainers[occupant].lose(node, announced=announced)
        self._touch(owner, occupant)
        return not announced

    def _touch(self, *trainers: TrainerId | None) -> None:
        self.touched.update(dict.fromkeys(trainer for trainer in trainers if trainer is not None))
