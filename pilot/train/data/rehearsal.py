"""The ranks that rehearse in a step, and whose samples they use; see :mod:`pilot.train.alike.newcomers`."""

from __future__ import annotations

from dataclasses import dataclass, replace

from pilot.train.data.sampler import StepShare


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """The nodes that rehearse in a step, the same on all ranks."""

    nodes: int  #: number of nodes in the group, of ``per_node`` ranks each
    per_node: int
    reference: int  #: the node whose samples the rehearsing nodes use
    rehearsing: frozenset[int]  #: the rehearsing nodes

    @property
    def parts(self) -> int:
        """The number of ranks among which the step's samples are divided."""
        return (self.nodes - len(self.rehearsing)) * self.per_node

    def part(self, rank: int) -> int:
        """Return the number of the part of samples that ``rank`` gets: its own, or the reference's."""
        node, local = divmod(self.stands_for(rank), self.per_node)
        return sum(one not in self.rehearsing for one in range(node)) * self.per_node + local

    def stands_for(self, rank: int) -> int:
        """Return the rank whose samples and random numbers ``rank`` uses: another one only if it rehearses."""
        return self.reference * self.per_node + rank % self.per_node if self.rehearses(rank) else rank

    def rehearses(self, rank: int) -> bool:
        """Return whether the gradient of ``rank`` is compared instead of counted."""
        return self.node_of(rank) in self.rehearsing

    def node_of(self, rank: int) -> int:
        """Return the number of the node of ``rank``."""
        return rank // self.per_node

    def is_compared(self, rank: int) -> bool:
        """Return whether the gradient of ``rank`` takes part in the comparison, on either side."""
        return self.rehearses(rank) or self.node_of(rank) == self.reference

    def counted(self, share: StepShare, rank: int) -> StepShare:
        """Return ``share`` as it counts: the samples of a rehearsing rank do not."""
        return replace(share, samples=0) if self.rehearses(rank) else share
