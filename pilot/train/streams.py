"""A stream of random numbers per sample, in each of the three generators, at a lower cost than seeding them.

The words of a state (:mod:`pilot.train.generator_memory`) are hashes of the sample's seed and of their index. An
augmentation usually draws few numbers, so only the first words are generated and written into the generator, for all
samples of a piece at once. If a sample has drawn more, which shows by a word that only regenerating changes, the piece
has to be loaded again with more words: the numbers are the same, and continue.
"""

from __future__ import annotations

import ctypes
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pilot.train.generator_memory import (
    ALL,
    NUMPY_NORMAL,
    PYTHON,
    PYTHON_ADDRESS,
    TORCH_ADDRESS,
    TORCH_HEAD,
    TORCH_NORMALS,
    TORCH_NORMALS_AT,
    numpy_address,
    view,
    word,
)
from pilot.train.sampler import mix

Words = NDArray[np.uint32]
Samples = NDArray[np.uint64]

_FEW, _TIMES = 8, 2
_SAMPLE = np.uint64(0xD6E8FEB86659FD93)
_COUNTERS = np.arange(1, ALL // 2 + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
_MIX = (np.uint64(30), np.uint64(0xBF58476D1CE4E5B9)), (np.uint64(27), np.uint64(0x94D049BB133111EB))
_LAST_SHIFT = np.uint64(31)
_TORCH_BYTES = torch.default_generator.get_state().numel()


def words(start: int, samples: Samples, count: int) -> Words:
    """The first ``count`` words (even) of each sample's stream, shape (samples, ``count``).

    SplitMix64 (Steele et al., "Fast splittable pseudorandom number generators", 2014): the hash of a counter that goes
    on from ``start``, by one step for each two words and by another for each sample.
    """
    state = (samples * _SAMPLE + np.uint64(start))[:, None] + _COUNTERS[: count // 2]
    room = np.empty_like(state)
    for shift, factor in _MIX:
        np.right_shift(state, shift, out=room)
        np.bitwise_xor(state, room, out=state)
        np.multiply(state, factor, out=state)
    np.right_shift(state, _LAST_SHIFT, out=room)
    np.bitwise_xor(state, room, out=state)
    made: Words = state.view(np.uint32)
    return made


class Stream(ABC):
    """The streams of one generator; ``lane`` makes its words differ from those of the others.

    ``made``: how many words of each sample's stream to generate; all of them once a sample drew more than 512.
    """

    def __init__(self, lane: int, made: int = _FEW) -> None:
        self._lane = lane
        self.made = made

    def each(self, seed: int, samples: Samples, items: Iterable[int]) -> Iterator[int]:
        """Yield each of ``items``, one per sample, after setting the generator for that sample."""
        self._marker = self._unwritten()
        self._was = self._marker.value
        return self._each(words(mix(seed, self._lane), samples, self.made), items)

    def sufficed(self) -> bool:
        """Whether no sample since :meth:`each` drew more than was generated; otherwise more are generated from now
        on."""
        if self.made == ALL or self._marker.value == self._was:
            return True
        self.made = self.made * _TIMES if self.made * _TIMES < ALL else ALL
        return False

    @abstractmethod
    def _unwritten(self) -> ctypes.c_uint32:
        """A word of the state that is not written unless all are."""

    @abstractmethod
    def _each(self, made: Words, items: Iterable[int]) -> Iterator[int]:
        """See :meth:`each`."""


class OfTorch(Stream):
    """Streams of torch's CPU generator: the words stand at the beginning, and no more of them are left."""

    def __init__(self, address: int) -> None:
        super().__init__(1)
        self._address = address

    def _unwritten(self) -> ctypes.c_uint32:
        return word(self._address + TORCH_HEAD.size + 4 * (ALL - 1))

    def _each(self, made: Words, items: Iterable[int]) -> Iterator[int]:
        begin = TORCH_HEAD.size // 4
        rows = np.empty((len(made), begin + self.made), np.uint32)
        rows[:, :begin] = np.frombuffer(TORCH_HEAD.pack(0, _left(self.made), True, 0), np.uint32)
        rows[:, 0] = made[:, 0]  # the seed
        rows[:, begin:] = made
        place = view(self._address, rows.strides[0])
        normals, none = view(self._address + TORCH_NORMALS_AT, TORCH_NORMALS.size), bytes(TORCH_NORMALS.size)
        for item, row in zip(items, _rows(rows), strict=True):
            place.raw = row
            normals.raw = none
            yield item


class OfNumpy(Stream):
    """Streams of numpy's global generator: the words stand at the end. The position and whether a normal number is kept
    are elsewhere.
    """

    def __init__(self, normal: ctypes.c_uint64) -> None:
        super().__init__(2)
        self._normal = normal

    def _unwritten(self) -> ctypes.c_uint32:
        return word(numpy_address())

    def _each(self, made: Words, items: Iterable[int]) -> Iterator[int]:
        address, begin, rows, normal = numpy_address(), _position(self.made), _at_end(made), self._normal
        position, place = word(address + 4 * ALL), view(address + 4 * (ALL - self.made), 4 * self.made)
        for item, row in zip(items, _rows(rows), strict=True):
            position.value = begin
            place.raw = row
            normal.value = 0
            yield item


class OfPython(Stream):
    """Streams of Python's generator, of which the same is true."""

    def __init__(self) -> None:
        super().__init__(3)

    def _unwritten(self) -> ctypes.c_uint32:
        return word(PYTHON_ADDRESS + 4)

    def _each(self, made: Words, items: Iterable[int]) -> Iterator[int]:
        begin, rows = _position(self.made), _at_end(made)
        position, place = word(PYTHON_ADDRESS), view(PYTHON_ADDRESS + 4 * (1 + ALL - self.made), 4 * self.made)
        for item, row in zip(items, _rows(rows), strict=True):
            position.value = begin
            place.raw = row
            PYTHON.gauss_next = None
            yield item


class BySetting(Stream):
    """Streams of a generator whose memory is not known.

    Parameters
    ----------
    lane : see :class:`Stream`
    set_state : sets its state from all of a stream's words
    """

    def __init__(self, lane: int, set_state: Callable[[Words], object]) -> None:
        super().__init__(lane, ALL)
        self._set_state = set_state

    def _unwritten(self) -> ctypes.c_uint32:
        return ctypes.c_uint32()

    def _each(self, made: Words, items: Iterable[int]) -> Iterator[int]:
        for item, row in zip(items, made, strict=True):
            self._set_state(row)
            yield item


def of_torch(address: int | None = TORCH_ADDRESS) -> Stream:
    """Streams of torch's CPU generator, whose head is at ``address``."""
    return BySetting(1, _set_torch) if address is None else OfTorch(address)


def of_numpy(normal: ctypes.c_uint64 | None = NUMPY_NORMAL) -> Stream:
    """Streams of numpy's global generator; ``normal`` says whether it keeps a normal number."""
    return BySetting(2, _set_numpy) if normal is None else OfNumpy(normal)


def _set_torch(made: Words) -> None:
    """A copy of a state consists of words of 8 bytes: the seed, how many are left and that it is seeded, which is next,
    and all words; then come normal numbers.
    """
    state = np.zeros(_TORCH_BYTES // 8, np.uint64)
    state[:3] = made[0], 1 << 32 | _left(ALL), 0
    state[3 : 3 + ALL] = made
    torch.default_generator.set_state(torch.from_numpy(state.view(np.uint8)))


def _set_numpy(made: Words) -> None:
    np.random.set_state(("MT19937", np.roll(made, 1), _position(ALL), 0, 0.0))


def _left(made: int) -> int:
    """torch's number of words left plus one; it accepts at most 624."""
    return min(made + 1, ALL)


def _position(made: int) -> int:
    """Of the first word, where they stand at the end. The first place of all is to stay as it is."""
    return max(ALL - made, 1)


def _at_end(made: Words) -> Words:
    """As they stand from there on; where all are made, the first place has the last word."""
    return np.roll(made, 1, axis=1) if made.shape[1] == ALL else made


def _rows(array: NDArray[Any]) -> list[bytes]:
    """The bytes of each row."""
    rows: list[bytes] = np.ascontiguousarray(array).view(f"V{array.strides[0]}").ravel().tolist()
    return rows
