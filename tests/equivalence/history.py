"""A trainer's history: each of its steps, with the ranks that took part and the samples that each of them took.

This is a short independent implementation, since :mod:`pilot.train.sampler` is under test.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from pilot.train.lineage import LineageRow

Members = tuple[int, ...]
"""The members of a group, by rank: each process has its own number for its lifetime."""


@dataclass(frozen=True)
class Part:
    """A batch that the process ``member`` took as rank ``rank``: samples [start, stop) of the epoch's order.

    ``number``: the micro-batch's; ``weight``: that of its mean gradient in the step (0: the rank had no samples, and
    ran its loop with another rank's).
    """

    member: int
    rank: int
    number: int
    start: int
    stop: int
    weight: float


@dataclass(frozen=True)
class Step:
    """Step ``number`` took the samples [cursor, cursor_end) of ``epoch``."""

    number: int
    epoch: int
    cursor: int
    cursor_end: int
    members: Members

    def parts(self, full: int, micro: int | None) -> list[Part]:
        """The batches of all ranks, in order; ``full``: the samples of a full step."""
        each, over = divmod(full, len(self.members))
        start, parts = self.cursor, list[Part]()
        for rank, member in enumerate(self.members):
            stop = min(start + each + (rank < over), self.cursor_end)
            parts += self._cut(rank, member, start, stop, micro or full) or [self._borrowed(rank, member, parts[0])]
            start = stop
        return parts

    def _cut(self, rank: int, member: int, start: int, stop: int, micro: int) -> list[Part]:
        total = self.cursor_end - self.cursor
        cuts = [(a, min(a + micro, stop)) for a in range(start, stop, micro)]
        return [Part(member, rank, i, a, b, (b - a) / total) for i, (a, b) in enumerate(cuts)]

    def _borrowed(self, rank: int, member: int, first: Part) -> Part:
        """For a rank without samples: rank 0's first batch."""
        return Part(member, rank, 0, first.start, first.stop, 0.0)


def history(ledger: Iterable[LineageRow], batch: int, groups: Mapping[int, Members], *, per_node: bool) -> list[Step]:
    """The steps behind a state.

    Parameters
    ----------
    batch : samples of a full step; ``per_node``: per rank
    groups : the ranks, by generation
    """
    steps = []
    for row in ledger:
        members = groups[row.generation]
        full = batch * len(members) if per_node else batch
        for number in range(row.step, row.step_end):
            cursor = row.cursor + (number - row.step) * full
            steps.append(Step(number, row.epoch, cursor, min(cursor + full, row.cursor_end), members))
    return steps


def undisturbed(samples: int, batch: int, epochs: int) -> list[Step]:
    """What a single process does alone."""
    cursors = [(epoch, cursor) for epoch in range(epochs) for cursor in range(0, samples, batch)]
    return [Step(n, epoch, c, min(c + batch, samples), (0,)) for n, (epoch, c) in enumerate(cursors)]


def by_epoch(steps: Sequence[Step]) -> Iterator[list[Step]]:
    """The steps of each epoch."""
    for epoch in range(steps[-1].epoch + 1 if steps else 0):
        yield [step for step in steps if step.epoch == epoch]
