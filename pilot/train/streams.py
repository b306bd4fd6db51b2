"""A stream of random numbers per sample, in each of the three generators, at a lower cost than seeding them.

All three are Mersenne Twisters: a state of 624 words, and how many of them were drawn; after the last one all are
regenerated. Here the words are hashes of the sample's seed and of their index. An augmentation usually draws few
numbers, so only the first words are generated and written into the generator, for all samples of a piece at once. If a
sample has drawn more, which shows by a marker word that nothing else changes, the piece has to be loaded again with
more words: the numbers are the same, and continue.
"""

from __future__ import annotations

import ctypes
import random
import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.random import mtrand
from numpy.typing import NDArray

from pilot.train.sampler import mix

Words = NDArray[np.uint32]
Samples = NDArray[np.uint64]

ALL = 624
_FEW, _TIMES = 8, 2
_SAMPLE = np.uint64(0xD6E8FEB86659FD93)
_COUNTERS = np.arange(1, ALL // 2 + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
_MIX = (np.uint64(30), np.uint64(0xBF58476D1CE4E5B9)), (np.uint64(27), np.uint64(0x94D049BB133111EB))
_LAST_SHIFT = np.uint64(31)
_PYTHON: Any = random.random.__self__  # type: ignore[attr-defined]  # typeshed calls it a function
_TORCH_BYTES = torch.default_generator.get_state().numel()
_TORCH_WORDS = 3
"""Words of 8 bytes before the 624 of the state, which have 8 bytes each, too."""
_TORCH_UNUSED = 0x9C8F1A35
"""Placeholder for words that were not generated."""
_RARE = 0x5DEECE66D1CE4E
"""A number to search for in memory."""


def words(start: int, samples: Samples, count: int) -> Words:
    """The first ``count`` words (even) of each sample's stream, shape (samples, ``count``).

    SplitMix64 (Steele et al., "Fast splittable pseudorandom number generators", 2014): the hash of a counter that goes
    on from ``start``, by one step for each two words and by another for each sample.
    """
    state = np.add.outer(samples * _SAMPLE + np.uint64(start), _COUNTERS[: count // 2])
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

    def __init__(self, lane: int) -> None:
        self._lane = lane
        self.made = _FEW

    def each(self, seed: int, samples: Samples, items: Iterable[int]) -> Iterator[int]:
        """Yield each of ``items``, one per sample, after setting the generator for that sample."""
        self._mark()
        return self._each(words(mix(seed, self._lane), samples, self.made), items)

    def sufficed(self) -> bool:
        """Whether no sample since :meth:`each` drew more than was generated; otherwise more are generated from now
        on."""
        if self.made == ALL or self._untouched():
            return True
        self.made = self.made * _TIMES if self.made * _TIMES < ALL else ALL
        return False

    @abstractmethod
    def _mark(self) -> None:
        """Remember the marker word, which only the generator changes."""

    @abstractmethod
    def _untouched(self) -> bool:
        """Whether it is unchanged; checked after each sample."""

    @abstractmethod
    def _each(self, made: Words, items: Iterable[int]) -> Iterator[int]:
        """See :meth:`each`."""


class OfTorch(Stream):
    """Streams of torch's CPU generator, whose state can only be set as a whole."""

    def __init__(self) -> None:
        super().__init__(1)
        self._last = _torch_last_word()
        self._drew_all = False
        if self._last is None:
            self.made = ALL

    def _mark(self) -> None:
        self._drew_all = False

    def _untouched(self) -> bool:
        return not self._drew_all and (self._last is None or self._last.value == _TORCH_UNUSED)

    def _each(self, made: Words, items: Iterable[int]) -> Iterator[int]:
        """A state consists of the seed, the number of words left plus one, 1, the index of the next word, and the
        words."""
        count, last = self.made, self._last
        rows = np.empty((len(made), _TORCH_WORDS + count), np.uint64)
        rows[:, 0], rows[:, 1], rows[:, 2] = made[:, 0], 1 << 32 | min(count + 1, ALL), 0
        rows[:, _TORCH_WORDS:] = made
        state = torch.zeros(_TORCH_BYTES, dtype=torch.uint8)
        memory = _memory(state.data_ptr(), _TORCH_BYTES)
        memory[8 * (_TORCH_WORDS + ALL - 1) : 8 * (_TORCH_WORDS + ALL)] = struct.pack("Q", _TORCH_UNUSED)
        place, set_state = memory[: rows.strides[0]], torch.default_generator.set_state
        for item, row in zip(items, _rows(rows), strict=True):
            place[:] = row
            set_state(state)
            yield item
            if last is not None and last.value != _TORCH_UNUSED:
                self._drew_all = True


class InMemory(Stream):
    """Streams of a generator whose state is written directly into its memory.

    Parameters
    ----------
    lane : see :class:`Stream`
    position, state : memory of 4 bytes and of the 624 words
    drop_normal : discards the second of two normal numbers, which the generator keeps
    """

    def __init__(self, lane: int, position: memoryview, state: memoryview, drop_normal: Callable[[], object]) -> None:
        super().__init__(lane)
        self._position = position
        self._state = state
        self._drop_normal = drop_normal

    def _mark(self) -> None:
        self._first = bytes(self._state[:4])

    def _untouched(self) -> bool:
        return bytes(self._state[:4]) == self._first

    def _each(self, made: Words, items: Iterable[int]) -> Iterator[int]:
        """The words stand at the end. The first place of all is to stay as it is; where all are made it has the last
        word.
        """
        rows = np.roll(made, 1, axis=1) if self.made == ALL else made
        begin = struct.pack("I", max(ALL - self.made, 1))
        position, place, drop_normal = self._position, self._state[-rows.strides[0] :], self._drop_normal
        for item, row in zip(items, _rows(rows), strict=True):
            position[:] = begin
            place[:] = row
            drop_normal()
            yield item


def of_numpy() -> Stream:
    """Streams of numpy's global generator."""
    address = mtrand.get_bit_generator().ctypes.state_address
    return InMemory(2, _memory(address + 4 * ALL, 4), _memory(address, 4 * ALL), _numpy_drop_normal())


def of_python() -> Stream:
    """Streams of Python's generator."""
    address = id(_PYTHON) + object.__basicsize__
    drop_normal = partial(setattr, _PYTHON, "gauss_next", None)
    return InMemory(3, _memory(address, 4), _memory(address + 4, 4 * ALL), drop_normal)


def _rows(array: NDArray[Any]) -> list[bytes]:
    """The bytes of each row."""
    rows: list[bytes] = np.ascontiguousarray(array).view(f"V{array.strides[0]}").ravel().tolist()
    return rows


def _memory(address: int, size: int) -> memoryview:
    """A view to read and write."""
    return memoryview((ctypes.c_char * size).from_address(address)).cast("B")


def _torch_last_word() -> ctypes.c_uint32 | None:
    """The last word of torch's generator, in its memory, because getting its state takes a microsecond. None: not
    found."""
    generator: Any = torch.default_generator
    before = generator.get_state()
    generator.manual_seed(_RARE)
    state: Any = generator.get_state().numpy()
    words = state[8 * _TORCH_WORDS :][: 8 * ALL].view(np.uint64).astype(np.uint32).tobytes()
    seed = _find(struct.pack("Q", _RARE), generator._cdata, len(words))
    address = (seed or 0) + 20  # beside it are how many words are left, whether it is seeded, and which is next
    known = seed is not None and ctypes.string_at(address, len(words)) == words
    generator.set_state(before)
    return ctypes.c_uint32.from_address(address + len(words) - 4) if known else None


def _numpy_drop_normal() -> Callable[[], object]:
    """A function that discards the second of two normal numbers, which numpy keeps, by a flag in its memory. If that is
    not found, it is done by numpy's own call, which takes four times as long.
    """
    holder: Any = mtrand._rand
    before: Any = np.random.get_state()
    np.random.set_state((*before[:3], 1, float(_RARE)))
    address = _find(struct.pack("Qd", 1, _RARE), id(holder), type(holder).__basicsize__)
    np.random.set_state(before)
    if address is None:
        return partial(mtrand.set_bit_generator, mtrand.get_bit_generator())
    return partial(_memory(address, 8).__setitem__, slice(None), bytes(8))


def _find(mark: bytes, address: int, size: int) -> int | None:
    """Where ``mark`` is in the ``size`` bytes at ``address``."""
    place = ctypes.string_at(address, size).find(mark)
    return None if place < 0 else address + place
