"""The order of an epoch's samples: a function of (seed, epoch) and of nothing else."""

from __future__ import annotations

from threading import Thread
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from pilot.train.sampler import mix

_LONG = 1 << 20
"""From this many samples on (tens of milliseconds) the next epoch's order is made while the present one is trained."""
_BLOCK = 1 << 16


class Order(Protocol):
    """Of each epoch."""

    length: int
    """Positions of an epoch."""

    def indices(self, epoch: int, start: int, stop: int, /) -> list[int]:
        """The samples at positions [start, stop) of ``epoch``."""


def permutation(seed: int, epoch: int, length: int) -> NDArray[np.signedinteger]:
    """A permutation of [0, length), shape (length,). Its numbers take 4 bytes where they fit."""
    order: NDArray[np.signedinteger] = np.arange(
        length, dtype=np.int32 if length <= np.iinfo(np.int32).max else np.int64
    )
    np.random.Generator(np.random.PCG64(mix(seed, epoch))).shuffle(order)
    return order


class Sequential:
    """As the dataset has them."""

    def __init__(self, length: int) -> None:
        self.length = length

    def indices(self, _epoch: int, start: int, stop: int) -> list[int]:
        """See :class:`Order`."""
        return list(range(start, stop))


class Shuffled:
    """Each sample once per epoch. It holds the present epoch's order and, of many samples, the next one's."""

    def __init__(self, seed: int, length: int) -> None:
        self.length = length
        self._seed = seed
        self._present: _Permutation | None = None
        self._next = self._begin(0)

    def indices(self, epoch: int, start: int, stop: int) -> list[int]:
        """See :class:`Order`."""
        if self._present is None or self._present.epoch != epoch:
            self._present = self._next if self._next.epoch == epoch else self._begin(epoch)
            self._present.get()
            self._next = self._begin(epoch + 1)
        indices: list[int] = self._present.get()[start:stop].tolist()
        return indices

    def _begin(self, epoch: int) -> _Permutation:
        return _Permutation(self._seed, epoch, self.length)


class _Permutation:
    """Made in the background where that takes long (numpy lets other threads run), else when it is asked for."""

    def __init__(self, seed: int, epoch: int, length: int) -> None:
        self.epoch = epoch
        self._of = seed, epoch, length
        self._order: NDArray[np.signedinteger] | None = None
        self._thread: Thread | None = None
        if length >= _LONG:
            self._thread = Thread(target=self._make, name="epoch-order", daemon=True)
            self._thread.start()

    def get(self) -> NDArray[np.signedinteger]:
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        return self._make() if self._order is None else self._order

    def _make(self) -> NDArray[np.signedinteger]:
        self._order = order = permutation(*self._of)
        return order


class Drawn:
    """Sampling with replacement: each position is any sample, whatever came before. It is drawn block by block, so an
    epoch may have any length.
    """

    def __init__(self, seed: int, samples: int, length: int) -> None:
        self.length = length
        self._seed = seed
        self._samples = samples
        self._last: tuple[tuple[int, int], NDArray[np.int64]] | None = None

    def indices(self, epoch: int, start: int, stop: int) -> list[int]:
        """See :class:`Order`."""
        first = start // _BLOCK
        blocks = [self._block(epoch, number) for number in range(first, -(-stop // _BLOCK))]
        drawn: list[int] = np.concatenate(blocks)[start - first * _BLOCK : stop - first * _BLOCK].tolist()
        return drawn

    def _block(self, epoch: int, number: int) -> NDArray[np.int64]:
        if self._last is None or self._last[0] != (epoch, number):
            generator = np.random.Generator(np.random.PCG64(mix(self._seed, epoch, number)))
            self._last = (epoch, number), generator.integers(self._samples, size=_BLOCK)
        return self._last[1]
