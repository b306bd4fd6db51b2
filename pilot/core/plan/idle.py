"""Which bound leaves nodes idle, if one does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from pilot.core.trainer.trainer import Trainer


class Bound(StrEnum):
    """What keeps trainers from idle nodes."""

    PARALLEL = "--max-parallel-trainers"
    """How many trainers run at once, as a user set it."""
    PROBLEM = "the size of a problem"
    """How many trainers a problem includes at most."""
    NODES = "--max-nodes"
    """How many nodes the trainers run on at most; none waits."""


@dataclass(frozen=True, slots=True)
class Idle:
    """``nodes`` that no trainer has because of a ``bound`` of ``most`` (of :attr:`Bound.NODES`: the largest of the
    trainers), while ``waiting`` trainers could start on them.
    """

    nodes: int
    bound: Bound
    most: int
    waiting: int = 0

    def sentence(self) -> str:
        """It in words."""
        idle = f"{self.nodes} node{'' if self.nodes == 1 else 's'} idle"
        waits = f"{self.waiting} trainer{' waits' if self.waiting == 1 else 's wait'}"
        match self.bound:
            case Bound.PARALLEL:
                return f"{idle} because of {self.bound} {self.most}: {waits}"
            case Bound.PROBLEM:
                return f"{idle} because plans include at most {self.most} trainers: {waits}"
            case Bound.NODES:
                return f"{idle} because of the trainers' {self.bound} (up to {self.most}): none waits"


def idle_by(nodes: int, admitted: Sequence[Trainer], beyond: Sequence[Trainer], bound: Bound, most: int) -> Idle | None:
    """Why ``nodes`` nodes have no trainer; None: no bound is the reason.

    Parameters
    ----------
    admitted, beyond : those that share the pool, and those that wait because of ``bound``, which is ``most``
    """
    could = sum(trainer.spec.min_nodes <= nodes for trainer in beyond)
    if nodes > 0 and could:
        return Idle(nodes, bound, most, could)
    full = [trainer.spec.max_nodes for trainer in admitted if len(trainer.target) == trainer.spec.max_nodes]
    if nodes > 0 and full and not beyond and all(trainer.target for trainer in admitted):
        return Idle(nodes, Bound.NODES, max(full))
    return None
