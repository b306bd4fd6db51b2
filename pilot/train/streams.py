"""A stream of random numbers per sample, in each of the three generators, at a lower cost than seeding them.

The words of a state (:mod:`pilot.train.generator_memory`) come from a faster generator, in which the samples of an
epoch follow one another. An augmentation usually draws few numbers, so only the first words are generated and written,
for all samples of a piece at once. If a sample has drawn more, which shows by a word that only regenerating changes,
the piece has to be loaded again with more words: the numbers are the same, and continue.
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

_FEW, _TIMES = 8, 2
INCREMENT = 0x5851F42D4C957F2D14057B7EF767814F
"""Of all sequences: any odd number; this is the one that is usual for PCG64."""
_TORCH_BYTES = torch.default_generator.get_state().numel()


def words(source: np.random.PCG64, start: int, first: int, samples: int, count: int) -> Words:
    """The first ``count`` words of the streams of ``samples`` samples from number ``first`` on, shape (samples,
    ``count``).

    A stream consists of sections: 8 words, and then each as long as all before it. Those of all samples that have the
    same place are one sequence of PCG64 (O'Neill, "PCG", 2014), which can be entered anywhere, so that they are drawn
    by one call.

    Parameters
    ----------
    source : is set; its numbers before do not matter
    start : what the sequences begin with
    count : 8, 16, ..., 512, or all 624
    """
    sections, made, length = [], 0, _FEW
    while made < count:
        source.state = {
            "bit_generator": "PCG64",
            "state": {"state": mix(start, made) << 64 | start, "inc": INCREMENT},
            "has_uint32": 0,
            "uinteger": 0,
        }
        numbers: NDArray[np.uint64] = source.advance(first * length // 2).random_raw(samples * length // 2)
        sections.append(numbers.view(np.uint32).reshape(samples, length))
        made += length
        length = made
    return sections[0] if len(sections) == 1 else np.concatenate(sections, axis=1)[:, :count]


class Stream(ABC):
    """The streams of one generator; ``lane`` makes its words differ from those of the others.

    ``made``: how many words of each sample's stream to generate; all of them once a sample drew more than 512.
    """

    def __init__(self, lane: int, made: int = _FEW) -> None:
        self._lane = lane
        self._source = np.random.PCG64(0)
        self.made = made

    def each(self, seed: int, first: int, samples: int, items: Iterable[int]) -> Iterator[int]:
        """Yield each of ``items``, one per sample, after setting the generator for that sample: numbers ``first`` to
        ``first + samples - 1`` of an epoch, whose seed is ``seed``."""
        self._marker = self._unwritten()
        self._was = self._marker.value
        return self._each(words(self._source, mix(seed, self._lane), first, samples, self.made), items)

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
