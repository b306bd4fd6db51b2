"""The samples that a rank takes in a step: a function only of (seed, epoch, global cursor, group size, bounds).

Each epoch is one permutation of the samples. A step of the group takes the next range of it, from the global cursor on,
and the ranks divide the range. So, through all changes, the samples before the cursor have been used exactly once.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from numbers import Integral
from typing import Any

from pilot.core.errors import UserError

Bounds = tuple[int, ...]
"""How many samples of a full step go to the ranks before each rank, and to all of them. (): the same number to each."""
BALANCED, FREE, EQUAL = "balanced", "free", "equal"
_MASK = (1 << 64) - 1
_STEP, _FACTORS = 0x9E3779B97F4A7C15, (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)


def count_of(name: str, value: Any) -> int:
    """Return the argument ``name`` of ``session.loader`` as an int; :class:`UserError` if it is not a count."""
    if not isinstance(value, Integral) or value < 1:
        raise UserError(f"session.loader: {name} must be a whole number of at least 1, got {value!r}")
    return int(value)


def mix(*numbers: int) -> int:
    """Return a 63-bit seed that depends on all ``numbers`` and their order (SplitMix64's finaliser, chained)."""
    state = 0
    for number in numbers:
        state = (state + number + _STEP) & _MASK
        state = ((state ^ (state >> 30)) * _FACTORS[0]) & _MASK
        state = ((state ^ (state >> 27)) * _FACTORS[1]) & _MASK
        state ^= state >> 31
    return state >> 1


@dataclass(frozen=True, slots=True)
class StepShare:
    """One rank's part of one step: ``samples`` of the step's [cursor, cursor_end), which are positions in the epoch.

    ``batches``: [start, stop) of its micro-batches. A rank without samples gets another rank's, so that its loop runs;
    its gradient does not count. ``dummies``: the number of batches at the end that do not count either, and are run
    only to keep in step with the node's other processes.
    """

    cursor: int
    cursor_end: int
    samples: int
    batches: tuple[tuple[int, int], ...]
    dummies: int = field(default=0, repr=False)

    @property
    def total(self) -> int:
        """The number of samples of all ranks."""
        return self.cursor_end - self.cursor

    def moved(self, by: int) -> StepShare:
        """Return the same share of a step that begins ``by`` samples later."""
        batches = tuple([(start + by, stop + by) for start, stop in self.batches])
        return StepShare(self.cursor + by, self.cursor_end + by, self.samples, batches, self.dummies)

    def weight(self, batch: int) -> float:
        """Return the weight of micro-batch ``batch``'s mean gradient in the step's mean: its samples ÷ all samples."""
        start, stop = self.batches[batch]
        counts = self.samples and batch < len(self.batches) - self.dummies
        return (stop - start) / self.total if counts else 0.0


@dataclass(frozen=True, slots=True)
class Batching:
    """The number of samples that a step takes, and their division among the ranks."""

    per_node: int | None = None  #: samples per node and step (the global batch varies with the group), or None
    #: samples per step over all ranks (each rank's share varies), or None; exactly one of the two is given
    total: int | None = None
    #: most samples that a rank processes at once; its share is split into micro-batches whose gradients accumulate
    micro: int | None = None
    drop_last: bool = False  #: skip an epoch's last step if it has fewer samples than the others
    ranks_per_node: int = 1  #: ranks among which a node's samples are divided
    in_step: bool = False  #: the ranks of a node run the same number of micro-batches, because they compute together
    #: whether shares of ``total`` follow ranks' times: to a limit ("balanced"), without one ("free") or not ("equal")
    sharing: str = BALANCED

    def __post_init__(self) -> None:
        if (self.per_node is None) == (self.total is None):
            raise UserError("session.loader needs either batch_size (per node) or global_batch_size")
        if self.sharing not in (BALANCED, FREE, EQUAL):
            raise UserError(f"session.loader: shares must be 'balanced', 'free' or 'equal', got {self.sharing!r}")
        arguments = {"per_node": "batch_size", "total": "global_batch_size", "micro": "micro_batch_size"}
        for field_name, name in arguments.items():
            size = getattr(self, field_name)
            object.__setattr__(self, field_name, size if size is None else count_of(name, size))

    @property
    def of_one_node(self) -> int:
        """The number of samples of a full step on one node."""
        return self.per_node or self.total or 0

    @property
    def has_fixed_batches(self) -> bool:
        """Whether an epoch has the same number of batches for each rank of any group."""
        return self.per_node is None and self.micro is None

    def full(self, size: int) -> int:
        """Return the number of samples of a full step of ``size`` ranks."""
        return self.per_node * self.nodes(size) if self.per_node is not None else self.total or 0

    def nodes(self, size: int) -> int:
        """Return the number of nodes that have ``size`` ranks."""
        return size // self.ranks_per_node

    def quota_before(self, rank: int, size: int, bounds: Bounds = ()) -> int:
        """Return how many samples of a full step go to the ranks before ``rank``: lower ranks get the remainders."""
        if bounds:
            return bounds[rank]
        if self.per_node is None:
            return evenly_before(self.full(size), rank, size)
        node, local = divmod(rank, self.ranks_per_node)
        return self.per_node * node + evenly_before(self.per_node, local, self.ranks_per_node)

    def over(self, cursor: int, length: int, size: int) -> bool:
        """Return whether no step is left at ``cursor`` of an epoch of ``length`` samples."""
        left = length - cursor
        return left <= 0 or (self.drop_last and left < self.full(size))

    def last_cursor(self, length: int, size: int) -> int:
        """Return the cursor of the last step of an epoch of ``length`` samples in a group of constant ``size``."""
        full = self.full(size)
        last = (length - 1) // full * full
        return last - full if last and self.over(last, length, size) else last

    def share(self, cursor: int, length: int, rank: int, size: int, bounds: Bounds = ()) -> StepShare:
        """Return the share of ``rank`` in the step at ``cursor``. An epoch's last step fills the lower ranks first."""
        end = min(cursor + self.full(size), length)
        own, batches = self._part(cursor, end, rank, size, bounds)
        dummies = self._most(cursor, end, rank, size, bounds) - len(batches) if self.in_step and self.micro else 0
        return StepShare(cursor, end, own, batches + batches[-1:] * dummies, dummies)

    def _most(self, cursor: int, end: int, rank: int, size: int, bounds: Bounds) -> int:
        """Return the largest number of micro-batches of any rank on the node of ``rank`` in the step [cursor, end)."""
        first = rank - rank % self.ranks_per_node
        node = range(first, first + self.ranks_per_node)
        return max(len(self._part(cursor, end, one, size, bounds)[1]) for one in node)

    def _part(
        self, cursor: int, end: int, rank: int, size: int, bounds: Bounds
    ) -> tuple[int, tuple[tuple[int, int], ...]]:
        """Return the number of samples of ``rank`` in the step [cursor, end), and its micro-batches."""
        start = min(cursor + self.quota_before(rank, size, bounds), end)
        stop = min(cursor + self.quota_before(rank + 1, size, bounds), end)
        if start == stop:
            return 0, self._cut(cursor, min(cursor + self.quota_before(1, size, bounds), end), bool(bounds))[:1]
        return stop - start, self._cut(start, stop, bool(bounds))

    def shares(
        self, cursor: int, length: int, rank: int, size: int, bounds: Callable[[int], Bounds] = lambda _step: ()
    ) -> Iterator[StepShare]:
        """Yield the shares of ``rank`` in all steps from ``cursor`` to the epoch's end, in a constant group. ``bounds``
        is called for each step, from 0, when its share is wanted.
        """
        full, step, held = self.full(size), 0, bounds(0)
        one = self.share(0, full, rank, size, held)
        while length - cursor >= full:
            if (now := bounds(step)) is not held:
                held, one = now, self.share(0, full, rank, size, now)
            yield one.moved(cursor)
            cursor, step = cursor + full, step + 1
        if not self.over(cursor, length, size):
            yield self.share(cursor, length, rank, size, bounds(step))

    def batches(self, length: int, rank: int, size: int, bounds: Bounds = ()) -> int:
        """Return how many micro-batches ``rank`` gets in a complete epoch, in a group that does not change."""
        steps, left = divmod(length, self.full(size))
        count = steps * len(self.share(0, self.full(size), rank, size, bounds).batches)
        if left and not self.drop_last:
            count += len(self.share(length - left, length, rank, size, bounds).batches)
        return count

    def _cut(self, start: int, stop: int, evenly: bool) -> tuple[tuple[int, int], ...]:
        """Return the micro-batches of a share. Those of any size of share are ``evenly`` large, so none is tiny."""
        step = self.micro or stop - start
        if evenly:
            count = -(-(stop - start) // step)
            cuts = [start + evenly_before(stop - start, number, count) for number in range(count + 1)]
            return tuple(itertools.pairwise(cuts))
        return tuple((a, min(a + step, stop)) for a in range(start, stop, step))


def evenly_before(samples: int, rank: int, size: int) -> int:
    """Return how many of ``samples`` go to the ranks before ``rank``, if ``size`` ranks divide them evenly."""
    each, over = divmod(samples, size)
    return each * rank + min(rank, over)
