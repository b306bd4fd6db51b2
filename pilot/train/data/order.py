"""The order of an epoch's samples: a function only of (seed, epoch).

Orders are computed in blocks, as needed, so that a new plan, a newcomer or a restart in the middle of an epoch costs
one block. A shuffled order of few samples is a single block, a permutation in memory.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pilot.train.data.sampler import mix

MAX_AT_ONCE = 1 << 20
"""Up to this many samples, an epoch's order is computed at once (tens of milliseconds, 4 bytes per sample)."""
_ROUNDS = 3
_FACTORS = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)  # of SplitMix64

Numbers = NDArray[np.uint64]
Indices = NDArray[np.integer]


def permutation(seed: int, epoch: int, length: int) -> NDArray[np.int32]:
    """Return a permutation of [0, length), shape (length,), for at most ``MAX_AT_ONCE`` samples."""
    order: NDArray[np.int32] = np.arange(length, dtype=np.int32)
    np.random.Generator(np.random.PCG64(mix(seed, epoch))).shuffle(order)
    return order


class Bijection:
    """A permutation of [0, length), any part of which can be computed separately.

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
        """Return the values at ``positions``, with the same shape."""
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
    """Replace each number by the highest bits of its hash, in place."""
    numbers *= _FACTORS[0]
    numbers ^= numbers >> np.uint64(32)
    numbers *= _FACTORS[1]
    numbers >>= shift
    return numbers


class Order:
    """The order of samples in each epoch, computed in blocks of ``size`` positions. The last block stays in memory,
    because a loader asks for consecutive micro-batches. ``shuffle`` names the order in the run's identity.

    Parameters
    ----------
    seed : the seed for all epochs
    length : number of positions in an epoch
    """

    shuffle = "True"
    size = 1 << 16

    def __init__(self, seed: int, length: int) -> None:
        self.length = length
        self._seed = seed
        self._last: tuple[tuple[int, int], Indices] | None = None

    def indices(self, epoch: int, start: int, stop: int) -> Indices:
        """Return the samples at positions [start, stop) of ``epoch``."""
        parts = []
        while start < stop:
            number, offset = divmod(start, self.size)
            parts.append(self._block(epoch, number)[offset : offset + stop - start])
            start = (number + 1) * self.size
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def _block(self, epoch: int, number: int) -> Indices:
        if self._last is None or self._last[0] != (epoch, number):
            self._last = (epoch, number), self._make(epoch, number)
        return self._last[1]

    def _make(self, epoch: int, number: int) -> Indices:
        raise NotImplementedError


class Sequential(Order):
    """The dataset's own order."""

    shuffle = "False"

    def __init__(self, length: int) -> None:
        super().__init__(0, length)

    def _make(self, _epoch: int, number: int) -> Indices:
        return np.arange(number * self.size, (number + 1) * self.size)


class Shuffled(Order):
    """A shuffled order, each sample once per epoch, whose only block is the epoch."""

    def __init__(self, seed: int, length: int) -> None:
        super().__init__(seed, length)
        self.size = max(length, 1)

    def _make(self, epoch: int, _number: int) -> Indices:
        return permutation(self._seed, epoch, self.length)


class ShuffledInBlocks(Order):
    """A shuffled order, each sample once per epoch, of more than ``MAX_AT_ONCE`` samples."""

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


class Drawn(Order):
    """Sampling with replacement: each position is an independent draw. An epoch may have any length."""

    def __init__(self, seed: int, samples: int, length: int) -> None:
        super().__init__(seed, length)
        self._samples = samples

    def _make(self, epoch: int, number: int) -> Indices:
        generator = np.random.Generator(np.random.PCG64(mix(self._seed, epoch, number)))
        return generator.integers(self._samples, size=self.size)


def shuffled(seed: int, length: int) -> Order:
    """Return a shuffled order, each sample once per epoch."""
    return Shuffled(seed, length) if length <= MAX_AT_ONCE else ShuffledInBlocks(seed, length)
