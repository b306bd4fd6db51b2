"""Which samples a rank takes in a step: a function of (seed, epoch, global cursor, group size) and of nothing else.

Each epoch is one permutation of the samples. A step of the whole group takes the next stretch of it, from the global
cursor on; the ranks divide the stretch. So the samples behind the cursor are used exactly once, however often the
group changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from pilot.core.errors import UserError

_MASK = (1 << 64) - 1
_STEP, _FACTORS = 0x9E3779B97F4A7C15, (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)


def mix(*numbers: int) -> int:
    """A 63-bit seed that depends on all of ``numbers`` and their order (the finaliser of SplitMix64, chained)."""
    return _chain(numbers) >> 1


def _chain(numbers: Iterable[int]) -> int:
    state = 0
    for number in numbers:
        state = (state + number + _STEP) & _MASK
        state = ((state ^ (state >> 30)) * _FACTORS[0]) & _MASK
        state = ((state ^ (state >> 27)) * _FACTORS[1]) & _MASK
        state ^= state >> 31
    return state


@dataclass(frozen=True, slots=True)
class StepShare:
    """One rank's part of one step: ``samples`` of the step's [cursor, cursor_end), all in the epoch's order.

    ``batches``: [start, stop) of its micro-batches. A rank without samples gets somebody else's, to run its loop with;
    its gradient does not count. ``means``: of how many means over a batch the script makes the step's by itself.
    ``dummies``: how many batches at the end are run only for the others of a node, and do not count either.
    """

    cursor: int
    cursor_end: int
    samples: int
    batches: tuple[tuple[int, int], ...]
    means: int = 1
    dummies: int = field(default=0, repr=False)

    @property
    def total(self) -> int:
        """Of all ranks."""
        return self.cursor_end - self.cursor

    def moved(self, by: int) -> StepShare:
        """The same part of a step that begins ``by`` samples later."""
        batches = tuple([(start + by, stop + by) for start, stop in self.batches])
        return StepShare(self.cursor + by, self.cursor_end + by, self.samples, batches, self.means, self.dummies)

    def weight(self, batch: int) -> float:
        """Factor of the mean gradient of micro-batch ``batch`` in the mean over the step: its samples ÷ all (of one of
        the script's own means: ÷ those of that).
        """
        start, stop = self.batches[batch]
        counts = self.samples and batch < len(self.batches) - self.dummies
        return (stop - start) * self.means / self.total if counts else 0.0


@dataclass(frozen=True, slots=True)
class Batching:
    """How many samples a step takes.

    Parameters
    ----------
    per_node : samples per node and step (the global batch varies with the group), or None
    whole : samples per step over all ranks (each rank's share varies), or None; exactly one of the two is given
    micro : the most that a rank takes at once; its share is cut into micro-batches whose gradients accumulate
    drop_last : leave out an epoch's last step where it has fewer samples than the others
    ranks_per_node : among which a node's samples are divided
    accumulate : how many batches of that size make a step; the script divides their losses by this number
    in_step : the ranks of a node run equally many micro-batches, for they compute each together
    """

    per_node: int | None = None
    whole: int | None = None
    micro: int | None = None
    drop_last: bool = False
    ranks_per_node: int = 1
    accumulate: int = 1
    in_step: bool = False

    def __post_init__(self) -> None:
        if (self.per_node is None) == (self.whole is None):
            raise UserError("session.loader needs either batch_size (per node) or global_batch_size")
        for name, size in (
            ("batch_size", self.per_node),
            ("global_batch_size", self.whole),
            ("micro_batch_size", self.micro),
            ("accumulate", self.accumulate),
        ):
            if size is not None and (not isinstance(size, int) or size < 1):
                raise UserError(f"session.loader: {name} must be a whole number of at least 1, got {size!r}")
        if self.accumulate > 1:
            self._check_accumulation()

    def _check_accumulation(self) -> None:
        if self.micro is not None:
            raise UserError(
                "session.loader: accumulate is for loops that add up batches by themselves, micro_batch_size for those"
                " that leave it to the session; give one of the two"
            )
        if not self.drop_last:
            raise UserError(
                f"session.loader: accumulate={self.accumulate} needs drop_last=True: at an epoch's end there may be"
                " fewer batches than a step takes, and they are left out"
            )

    @property
    def of_one_node(self) -> int:
        """Samples of a full step where there is one node."""
        return (self.per_node or self.whole or 0) * self.accumulate

    def full(self, size: int) -> int:
        """Samples of a full step of ``size`` ranks."""
        return self.batch(size) * self.accumulate

    def batch(self, size: int) -> int:
        """Samples of one batch of ``size`` ranks; ``accumulate`` of them make a step."""
        return self.per_node * self.nodes(size) if self.per_node is not None else self.whole or 0

    def nodes(self, size: int) -> int:
        """On how many nodes ``size`` ranks are."""
        return size // self.ranks_per_node

    def quota_before(self, rank: int, size: int) -> int:
        """Samples that the ranks before ``rank`` take of a full batch: an even division, the lower ranks first."""
        if self.per_node is None:
            return _evenly_before(self.batch(size), rank, size)
        node, local = divmod(rank, self.ranks_per_node)
        return self.per_node * node + _evenly_before(self.per_node, local, self.ranks_per_node)

    def over(self, cursor: int, length: int, size: int) -> bool:
        """Whether no step is left at ``cursor`` of an epoch of ``length`` samples."""
        left = length - cursor
        return left <= 0 or (self.drop_last and left < self.full(size))

    def last_cursor(self, length: int, size: int) -> int:
        """Where the last step of an epoch of ``length`` samples begins, if the group is of this ``size`` all along."""
        full = self.full(size)
        last = (length - 1) // full * full
        return last - full if last and self.over(last, length, size) else last

    def share(self, cursor: int, length: int, rank: int, size: int) -> StepShare:
        """The part of ``rank`` in the step at ``cursor``. An epoch's last step fills the lower ranks first."""
        end = min(cursor + self.full(size), length)
        cuts = range(cursor, end, self.batch(size))
        parts = [self._part(start, min(start + self.batch(size), end), rank, size) for start in cuts]
        own = sum(samples for samples, _ in parts)
        batches = tuple(b for _, batches in parts for b in batches)
        dummies = self._most(cursor, end, rank, size) - len(batches) if self.in_step and self.micro else 0
        return StepShare(cursor, end, own, batches + batches[-1:] * dummies, self.accumulate, dummies)

    def _most(self, cursor: int, end: int, rank: int, size: int) -> int:
        """The most micro-batches that a rank has on the node of ``rank``, in a step of one batch."""
        first = rank - rank % self.ranks_per_node
        return max(len(self._part(cursor, end, one, size)[1]) for one in range(first, first + self.ranks_per_node))

    def _part(self, cursor: int, end: int, rank: int, size: int) -> tuple[int, tuple[tuple[int, int], ...]]:
        """Of ``rank`` in the batch [cursor, end): its samples, and its micro-batches."""
        start = min(cursor + self.quota_before(rank, size), end)
        stop = min(cursor + self.quota_before(rank + 1, size), end)
        if start == stop:
            return 0, self._cut(cursor, min(cursor + self.quota_before(1, size), end))[:1]
        return stop - start, self._cut(start, stop)

    def shares(self, cursor: int, length: int, rank: int, size: int) -> Iterator[StepShare]:
        """The parts of ``rank`` in all steps from ``cursor`` to the epoch's end, if the group stays as it is."""
        full = self.full(size)
        one = self.share(0, full, rank, size)
        while length - cursor >= full:
            yield one.moved(cursor)
            cursor += full
        if not self.over(cursor, length, size):
            yield self.share(cursor, length, rank, size)

    def batches(self, length: int, rank: int, size: int) -> int:
        """How many micro-batches ``rank`` gets in a whole epoch, if the group stays as it is."""
        steps, left = divmod(length, self.full(size))
        count = steps * len(self.share(0, self.full(size), rank, size).batches)
        if left and not self.drop_last:
            count += len(self.share(length - left, length, rank, size).batches)
        return count

    def _cut(self, start: int, stop: int) -> tuple[tuple[int, int], ...]:
        step = self.micro or stop - start
        return tuple((a, min(a + step, stop)) for a in range(start, stop, step))


def _evenly_before(samples: int, rank: int, size: int) -> int:
    """How many of ``samples`` go to the ranks before ``rank``, of ``size``."""
    each, over = divmod(samples, size)
    return each * rank + min(rank, over)
