"""The order of an epoch's samples: a function only of (seed, epoch).

A shuffled order of few samples is a permutation kept in memory. One of many samples is computed in blocks, as needed: a
new plan, a newcomer or a restart in the middle of an epoch costs one block, whatever the epoch's length.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from pilot.train.data.sampler import mix

WHOLE = 1 << 20
"""Up to this many samples, an epoch's order is computed at once (tens of milliseconds) and kept (4 bytes each)."""
_ROUNDS = 3
_FACTORS = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)  # of SplitMix64

Numbers = NDArray[np.uint64]
Indices = NDArray[np.integer]


class Order(Protocol):
    """The order of samples in each epoch."""

    length: int
    """Number of positions in an epoch."""
    shuffle: str
    """Its name in the run's identity: a run that resumes from a checkpoint must have the same order."""

    def indices(self, epoch: int, start: int, stop: int, /) -> Indices:
        """The samples at positions [start, stop) of ``epoch``."""


def permutation(seed: int, epoch: int, length: int) -> NDArray[np.int32]:
    """A permutation of [0, length) for at most ``WHOLE`` samples, shape (length,)."""
    order: NDArray[np.int32] = np.arange(length, dtype=np.int32)
    np.random.Generator(np.random.PCG64(mix(seed, epoch))).shuffle(order)
    return order


class Bijection:
    """A permutation of [0, length) of which any part can be computed separately.

    It is an alternating Feistel network over the bits of a position, applied repeatedly until the result is below
    ``length`` (cycle walking: Black and Rogaway 2002; as a shuffle: Mitchell et al., "Bandwidth-optimal random
    shuffling for GPUs", 2022). Its round function is a multiply-and-shift hash with a separate key for each half round.
    """

    def __init__(self, key: int, length: int) -> None:
        bits = max(2, (length - 1).bit_length())
        self._low_bits = np.uint64(bits // 2)
        self._shifts = np.uint64(64 - bits + bits // 2), np.uint64(64 - bits // 2)
        self._length = np.uint64(length)
        self._keys = [(np.uint64(mix(key, i, 0)), np.uint64(mix(key, i, 1))) for i in range(_ROUNDS)]

    def __call__(self, positions: Numbers) -> Numbers:
        """The values at ``positions``, with the same shape."""
        values = self._once(positions)
        while (outside := np.flatnonzero(values >= self._length)).size:
            values[outside] = self._once(values[outside])
        return values

    def _once(self, values: Numbers) -> Numbers:
        high = values >> self._low_bits
        low = values ^ (high << self._low_bits)
        for of_low, of_high in self._keys:
            high ^= _hashed(low + of_low, self._shifts[0])
            low ^= _hashed(high + of_high, self._shifts[1])
        return (high << self._low_bits) | low


def _hashed(numbers: Numbers, shift: np.uint64) -> Numbers:
    """The highest bits of a hash of each number, in place."""
    numbers *= _FACTORS[0]
    numbers ^= numbers >> np.uint64(32)
    numbers *= _FACTORS[1]
    numbers >>= shift
    return numbers


class Sequential:
    """The dataset's own order."""

    shuffle = "False"

    def __init__(self, length: int) -> None:
        self.length = length

    def indices(self, _epoch: int, start: int, stop: int) -> Indices:
        """See :class:`Order`."""
        return np.arange(start, stop)


class Blocks:
    """An order computed in blocks of ``size`` positions. The last block is kept, because a loader asks for consecutive
    pieces.

    Parameters
    ----------
    seed : for all epochs
    length : number of positions in an epoch
    """

    shuffle = "True"
    size = 1 << 16

    def __init__(self, seed: int, length: int) -> None:
        self.length = length
        self._seed = seed
        self._last: tuple[tuple[int, int], Indices] | None = None

    def indices(self, epoch: int, start: int, stop: int) -> Indices:
        """See :class:`Order`."""
        found = []
        while start < stop:
            number, offset = divmod(start, self.size)
            found.append(self._block(epoch, number)[offset : offset + stop - start])
            start = (number + 1) * self.size
        return found[0] if len(found) == 1 else np.concatenate(found)

    def _block(self, epoch: int, number: int) -> Indices:
        if self._last is None or self._last[0] != (epoch, number):
            self._last = (epoch, number), self._make(epoch, number)
        return self._last[1]

    def _make(self, epoch: int, number: int) -> Indices:
        raise NotImplementedError


class Shuffled(Blocks):
    """Each sample once per epoch; the whole epoch is one block."""

    def __init__(self, seed: int, length: int) -> None:
        super().__init__(seed, length)
        self.size = max(length, 1)

    def _make(self, epoch: int, _number: int) -> Indices:
        return permutation(self._seed, epoch, self.length)


class ShuffledInBlocks(Blocks):
    """Each sample once per epoch, for more than ``WHOLE`` samples."""

    shuffle = "in blocks"
    size = 1 << 14  # about a millisecond

    def __init__(self, seed: int, length: int) -> None:
        super().__init__(seed, length)
        self._bijection: tuple[int, Bijection] | None = None

    def _make(self, epoch: int, number: int) -> Indices:
        if self._bijection is None or self._bijection[0] != epoch:
            self._bijection = epoch, Bijection(mix(self._seed, epoch), self.length)
        start = number * self.size
        return self._bijection[1](np.arange(start, min(start + self.size, self.length), dtype=np.uint64))


class Drawn(Blocks):
    """Sampling with replacement: each position is an independent draw. An epoch may have any length."""

    def __init__(self, seed: int, samples: int, length: int) -> None:
        super().__init__(seed, length)
        self._samples = samples

    def _make(self, epoch: int, number: int) -> Indices:
        generator = np.random.Generator(np.random.PCG64(mix(self._seed, epoch, number)))
        return generator.integers(self._samples, size=self.size)


def shuffled(seed: int, length: int) -> Order:
    """Each sample once per epoch."""
    return Shuffled(seed, length) if length <= WHOLE else ShuffledInBlocks(seed, length)
