"""The facts that decide what a trainer needs next: where it stands, compared with its target."""

from __future__ import annotations

from functools import cached_property

from pilot.core.ids import NodeId
from pilot.core.pool.pool import Pool
from pilot.core.trainer.proof import ProofState
from pilot.core.trainer.trainer import Trainer

WRITES_TRIED = 9
"""How often a trainer that goes to 0 nodes tries to save its state before its nodes are released unsaved. Between the
attempts are growing pauses (``pilot/service/agents/effects.py``), two minutes in total, in which a full disk may get
room."""

WRITES_TRIED_PARKED = 5
"""The limit while its nodes wait for others: the remaining attempts are for when they are taken away."""


class Situation:
    """Where ``trainer`` stands. *Staying* nodes and *newcomers* make the next group."""

    def __init__(self, trainer: Trainer, pool: Pool) -> None:
        self.trainer = trainer
        self.pool = pool
        self.trains = trainer.group is not None

    @property
    def staying(self) -> list[NodeId]:
        """Target nodes that continue: members of the training group; without a group, the holders of the state."""
        return self._members[0]

    @property
    def newcomers(self) -> list[NodeId]:
        """Target nodes whose workers are ready to join the staying ones."""
        return self._members[1]

    @cached_property
    def _members(self) -> tuple[list[NodeId], list[NodeId]]:
        """Staying nodes and newcomers, as many as the largest allowed size within them. Computed once, when a rule
        first asks: it holds until a command changes a worker that is ready."""
        staying = self.trainer.complete_replicas(self._stay())
        carry_on = set(staying)
        ready = [n for n in self.trainer.target if n not in carry_on and self.trainer.ready_on(n)]
        ready = self.trainer.complete_replicas(ready)
        size = self.trainer.spec.fitting(len(staying) + len(ready))
        return staying[:size], ready[: max(0, size - len(staying))]

    def _stay(self) -> list[NodeId]:
        trainer = self.trainer
        if not self.trains:
            return [n for n in trainer.target if trainer.holds_state(n) and trainer.ready_on(n)]
        target = set(trainer.target)
        return [n for n in trainer.members if n in target]

    @property
    def too_few(self) -> bool:
        """Whether staying nodes and newcomers are too few for a group."""
        return len(self.staying) + len(self.newcomers) < self.trainer.spec.min_nodes

    @property
    def too_few_stay(self) -> bool:
        """Whether the staying nodes alone are too few for a group."""
        return len(self.staying) < self.trainer.spec.min_nodes

    @property
    def pending(self) -> bool:
        """Whether a target node will be ready soon. Slow ones are not waited for, and join later."""
        return any(self.trainer.awaited_on(node) for node in self.trainer.target)

    @property
    def parting(self) -> bool:
        """Whether a member of the training group does not stay."""
        return self.trains and len(self.staying) < len(self.trainer.members)

    @property
    def noticed(self) -> bool:
        """Whether a member of the training group got a notice."""
        return any(n in self.pool.leaving for n in self.trainer.members)

    @property
    def holds_up(self) -> bool:
        """Whether the node of a member of the training group belongs to another trainer by now."""
        own = self.trainer.id
        return any(self.pool.owner.get(n, own) != own for n in self.trainer.members)

    @property
    def unsaved(self) -> bool:
        """Whether workers hold a state that is in no checkpoint, and saving it has not failed too often."""
        return self._unsaved(WRITES_TRIED)

    @property
    def parked_unsaved(self) -> bool:
        """Whether too few workers to train hold a state that is in no checkpoint, and saving it may be tried again."""
        return self.trainer.parked and self._unsaved(WRITES_TRIED_PARKED)

    def _unsaved(self, tries: int) -> bool:
        return not self.trainer.saved and self.trainer.failed_writes < tries and bool(self.trainer.holders())

    @property
    def saving_what_goes(self) -> bool:
        """Whether a checkpoint is being written of a state that no staying worker holds."""
        trainer = self.trainer
        return bool(trainer.writing) and not any(trainer.holds_state(node) for node in trainer.target)

    @property
    def to_be_checked(self) -> bool:
        """Whether its script waits for a check, and trains on one node that stays."""
        members = self.trainer.members
        return self.trainer.proof.state is ProofState.WAITING and len(members) == 1 and self.staying == [*members]

    @property
    def lacking(self) -> list[NodeId]:
        """Target nodes without any trainer's worker. If a replica has several nodes: those of new replicas, of nodes
        next to each other.
        """
        lacking = [n for n in self.trainer.target if n not in self.trainer.workers]
        occupant, size = self.pool.occupant, self.trainer.spec.nodes_per_replica
        if size == 1:
            return [n for n in lacking if n not in occupant]
        replicas = zip(*[iter(self.pool.in_order(lacking))] * size, strict=False)
        return [n for replica in replicas if not any(n in occupant for n in replica) for n in replica]

    @property
    def surplus(self) -> list[NodeId]:
        """Nodes whose workers are needed neither by the target nor by a group or checkpoint. The target needs complete
        replicas.
        """
        trainer = self.trainer
        writing = [n for writer in trainer.writing for n in trainer.replica_of(writer)]
        members = (n for group in trainer.groups for n in group.members)
        needed = {*trainer.complete_replicas(trainer.target), *writing, *members}
        return [n for n in trainer.workers if n not in needed]
