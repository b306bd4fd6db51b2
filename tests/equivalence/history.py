"""A trainer's history: each of its steps, with the ranks that took part and the samples that each of them took.

This is a short independent implementation, since :mod:`pilot.train.data.sampler` is under test.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from pilot.train.state.progress import LineageRow

Members = tuple[int, ...]
"""The members of a group, by rank: each process has its own number for its lifetime."""
Rehearsing = Mapping[int, int]
"""Ranks that compute what another one computes (:mod:`pilot.train.data.rehearsal`), by which."""


@dataclass(frozen=True)
class Part:
    """A batch that the process ``member`` took as rank ``rank``: samples [start, stop) of the epoch's order.

    ``number``: the micro-batch's; ``weight``: that of its mean gradient in the step (0: the rank had no samples, and
    ran its loop with another rank's); ``draws_as``: the rank with whose random numbers.
    """

    member: int
    rank: int
    number: int
    start: int
    stop: int
    weight: float
    draws_as: int


@dataclass(frozen=True)
class Step:
    """Step ``number`` took the samples [cursor, cursor_end) of ``epoch``. ``rehearsing``: the ranks that only repeated
    what another one did, by which; ``bounds``: the samples of a full step before each of the others, if not evenly
    divided.
    """

    number: int
    epoch: int
    cursor: int
    cursor_end: int
    members: Members
    rehearsing: Rehearsing = field(default_factory=dict)
    bounds: Sequence[int] = ()

    @property
    def divided_by(self) -> int:
        """The number of ranks among which its samples were divided."""
        return len(self.members) - len(self.rehearsing)

    def parts(self, full: int, micro: int | None) -> list[Part]:
        """The batches of all ranks, in order; ``full``: the samples of a full step."""
        each, over = divmod(full, self.divided_by)
        evenly = [0] + [each * (place + 1) + min(place + 1, over) for place in range(self.divided_by)]
        ends, by_rank = [min(self.cursor + n, self.cursor_end) for n in self.bounds or evenly], dict[int, list[Part]]()
        for place, rank in enumerate(r for r in range(len(self.members)) if r not in self.rehearsing):
            own = self._cut(rank, self.members[rank], ends[place], ends[place + 1], micro or full)
            by_rank[rank] = own or [self._borrowed(rank, next(iter(by_rank.values()))[0])]
        for rank, other in self.rehearsing.items():
            by_rank[rank] = [self._borrowed(rank, part) for part in by_rank[other]]
            by_rank[rank] = [replace(part, draws_as=other) for part in by_rank[rank]]
        return [part for rank in sorted(by_rank) for part in by_rank[rank]]

    def _cut(self, rank: int, member: int, start: int, stop: int, micro: int) -> list[Part]:
        total = self.cursor_end - self.cursor
        cuts = [(a, min(a + micro, stop)) for a in range(start, stop, micro)]
        if self.bounds and cuts:
            small, larger = divmod(stop - start, len(cuts))
            ends = [*itertools.accumulate([small + (i < larger) for i in range(len(cuts))], initial=start)]
            cuts = [*itertools.pairwise(ends)]
        return [Part(member, rank, i, a, b, (b - a) / total, rank) for i, (a, b) in enumerate(cuts)]

    def _borrowed(self, rank: int, part: Part) -> Part:
        """The same batch, for a rank without samples."""
        return replace(part, member=self.members[rank], rank=rank, weight=0.0, draws_as=rank)


def history(
    ledger: Iterable[LineageRow],
    batch: int,
    groups: Mapping[int, Members],
    rehearsals: Mapping[int, Rehearsing],
    *,
    per_node: bool,
    bounds: Mapping[int, Sequence[int]] = MappingProxyType({}),
) -> list[Step]:
    """The steps behind a state.

    Parameters
    ----------
    batch : samples of a full step; ``per_node``: per rank
    groups : the ranks, by generation
    rehearsals : who rehearsed in the first step of a generation
    bounds : of each step
    """
    steps, before = list[Step](), 0
    for row in ledger:
        cursor = row.cursor
        for number in range(row.step, row.step_end):
            is_first, before = row.generation != before, row.generation
            rehearsing = rehearsals.get(row.generation, {}) if is_first else {}
            step = Step(number, row.epoch, cursor, row.cursor_end, groups[row.generation], rehearsing)
            step = replace(step, bounds=bounds.get(number, ()))
            full = batch * step.divided_by if per_node else batch
            steps.append(replace(step, cursor_end=min(cursor + full, row.cursor_end)))
            cursor += full
    return steps


def undisturbed(samples: int, batch: int, epochs: int) -> list[Step]:
    """What a single process does alone."""
    cursors = [(epoch, cursor) for epoch in range(epochs) for cursor in range(0, samples, batch)]
    return [Step(n, epoch, c, min(c + batch, samples), (0,)) for n, (epoch, c) in enumerate(cursors)]


def by_epoch(steps: Sequence[Step]) -> Iterator[list[Step]]:
    """The steps of each epoch."""
    for epoch in range(steps[-1].epoch + 1 if steps else 0):
        yield [step for step in steps if step.epoch == epoch]
