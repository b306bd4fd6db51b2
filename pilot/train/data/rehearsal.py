"""Who rehearses in a step, and with whose samples; see :mod:`pilot.train.alike.newcomers`."""

from __future__ import annotations

from dataclasses import dataclass, replace

from pilot.train.data.sampler import StepShare


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """Who rehearses in a step, the same on all ranks."""

    nodes: int  #: how many the group has, of ``per_node`` ranks each
    per_node: int
    reference: int  #: the node whose samples the others use, too
    rehearsing: frozenset[int]  #: these others

    @property
    def parts(self) -> int:
        """The number of ranks among which the step's samples are divided."""
        return (self.nodes - len(self.rehearsing)) * self.per_node

    def part(self, rank: int) -> int:
        """Which part ``rank`` gets: its own, or the reference's."""
        node, local = divmod(self.stands_for(rank), self.per_node)
        return sum(one not in self.rehearsing for one in range(node)) * self.per_node + local

    def stands_for(self, rank: int) -> int:
        """The rank with whose samples and random numbers ``rank`` computes; its own, unless it rehearses."""
        return self.reference * self.per_node + rank % self.per_node if self.rehearses(rank) else rank

    def rehearses(self, rank: int) -> bool:
        """Whether the gradient of ``rank`` is only compared."""
        return self.node_of(rank) in self.rehearsing

    def node_of(self, rank: int) -> int:
        """The number of its node."""
        return rank // self.per_node

    def is_compared(self, rank: int) -> bool:
        """Whether the gradient of ``rank`` is, or others are with it."""
        return self.rehearses(rank) or self.node_of(rank) == self.reference

    def counted(self, share: StepShare, rank: int) -> StepShare:
        """``share`` of :meth:`part`, of which a rank that rehearses only borrows the samples."""
        return replace(share, samples=0) if self.rehearses(rank) else share
