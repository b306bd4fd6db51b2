"""A stream of random numbers per sample, in each of the three generators, at a lower cost than seeding them.

The words of a state (:mod:`pilot.train.data.generator_memory`) come from a faster generator, in which the samples of an
epoch follow one another. An augmentation usually draws few numbers, so only the first words are generated and written,
for all samples of a piece at once. If a sample has drawn more, which shows by a word that only regenerating changes,
the piece has to be loaded again with more words: the numbers are the same, and continue. So has the first piece
whose samples draw single normal numbers, of which the generators keep every second one.
"""

from __future__ import annotations

import ctypes
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator

import numpy as np
import torch
from numpy.typing import NDArray

from pilot.train.data.generator_memory import (
    ALL,
    NUMPY_NORMAL,
    NUMPY_NORMAL_OF,
    PYTHON,
    PYTHON_ADDRESS,
    TORCH_ADDRESS,
    TORCH_HEAD,
    TORCH_NORMALS,
    TORCH_NORMALS_AT,
    Memory,
    numpy_address,
    view,
    word,
)
from pilot.train.data.sampler import mix

Words = NDArray[np.uint32]

_FEW, _TIMES = 8, 2
INCREMENT = 0x5851F42D4C957F2D14057B7EF767814F
"""Of all sequences: any odd number; this is the one that is usual for PCG64."""
_PERIOD = 1 << 128
_TORCH_BYTES = torch.default_generator.get_state().numel()
_NEVER_DRAWN = 2.0**40
"""Far beyond any normal number."""


class Sections:
    """Draws the first words of samples' streams.

    A stream consists of sections: 8 words, and then each as long as all before it. Those of all samples that have the
    same place are one sequence of PCG64 (O'Neill, "PCG", 2014), which can be entered anywhere, so that they are drawn
    by one call.
    """

    def __init__(self) -> None:
        self._sections: list[_Section] = []

    def fill(self, rows: Words, start: int, first: int) -> None:
        """Write the first words of the samples from number ``first`` on, one per row.

        Parameters
        ----------
        rows : shape (samples, 8, 16, ..., 512, or all 624 words)
        start : what the sequences begin with
        """
        made, number = 0, 0
        while made < rows.shape[1]:
            if number == len(self._sections):
                self._sections.append(_Section(made))
            section = self._sections[number]
            section.fill(rows[:, made : made + section.length], start, first)
            made, number = made + section.length, number + 1


class _Section:
    """The words of all samples from word ``begin`` of each stream on. As pieces often follow one another, its
    generator stays where it is."""

    def __init__(self, begin: int) -> None:
        self.length = begin or _FEW
        self._begin = begin
        self._source = np.random.PCG64(0)
        self._start = -1
        self._next = 0
        """The sample whose words it draws next."""

    def fill(self, columns: Words, start: int, first: int) -> None:
        """As :meth:`Sections.fill`; fewer columns than ``length`` get the first words."""
        samples, count = columns.shape
        if start != self._start:
            self._source.state = {
                "bit_generator": "PCG64",
                "state": {"state": mix(start, self._begin) << 64 | start, "inc": INCREMENT},
                "has_uint32": 0,
                "uinteger": 0,
            }
            self._start, self._next = start, 0
        if first != self._next:
            self._source.advance((first - self._next) * self.length // 2 % _PERIOD)
        self._next = first + samples
        numbers: NDArray[np.uint64] = self._source.random_raw(samples * self.length // 2)
        columns[:] = numbers.view(np.uint32).reshape(samples, self.length)[:, :count]


class Stream(ABC):
    """The streams of one generator; ``lane`` makes its words differ from those of the others.

    ``made``: how many words of each sample's stream to generate; all of them once a sample drew more than 512. In
    memory, ``before`` and ``after`` other ones stand beside these.
    """

    before = after = 0

    def __init__(self, lane: int, made: int = _FEW) -> None:
        self._lane = lane
        self._sections = Sections()
        self.made = made
        self._rows = np.empty((0, 0), np.uint32)

    def each(self, seed: int, first: int, samples: int, items: Iterable[int]) -> Iterator[int]:
        """Yield each of ``items``, one per sample, after setting the generator for that sample: numbers ``first`` to
        ``first + samples - 1`` of an epoch, whose seed is ``seed``."""
        self._marker = self._unwritten()
        self._was = self._marker.value
        shape = samples, self.before + self.made + self.after
        if self._rows.shape != shape:
            self._rows = np.empty(shape, np.uint32)
            self._complete(self._rows)
        its = self._rows[:, self.before : self.before + self.made]
        self._sections.fill(its, mix(seed, self._lane), first)
        return self._each(self._rows, its, items)

    def sufficed(self) -> bool:
        """Whether no sample since :meth:`each` drew more than was prepared; otherwise more is prepared from now on."""
        if self.made == ALL or self._marker.value == self._was:
            return True
        self.made = self.made * _TIMES if self.made * _TIMES < ALL else ALL
        return False

    @abstractmethod
    def _unwritten(self) -> ctypes.c_uint32:
        """A word of the state that is not written unless all are."""

    def _complete(self, rows: Words) -> None:  # noqa: B027  # most have nothing there
        """Set what stands beside the words, the same for each sample."""

    @abstractmethod
    def _each(self, rows: Words, words: Words, items: Iterable[int]) -> Iterator[int]:
        """See :meth:`each`; ``words`` are a part of ``rows``."""


class _InMemory(Stream):
    """Streams of a generator whose words have their position beside them, so that one assignment sets both; whether a
    normal number is kept is elsewhere, in ``normals``.

    That is reset for each sample only if samples draw normal numbers: the number that is kept is then no longer
    the one of ``no_normals``, which nobody draws.
    """

    def __init__(self, lane: int, normals: Memory, no_normals: bytes) -> None:
        super().__init__(lane)
        self._normals = normals
        self._none = no_normals
        self._keeps_normals = False

    def sufficed(self) -> bool:
        """See :class:`Stream`."""
        drew, self._keeps_normals = self._keeps_normals, self._keeps_normals or self._normals.raw != self._none
        return super().sufficed() and drew == self._keeps_normals

    def _each(self, rows: Words, words: Words, items: Iterable[int]) -> Iterator[int]:
        place = view(self._place(rows, words), rows.strides[0])
        normals, none = self._normals, self._none
        normals.raw = none
        if self._keeps_normals:
            for item, row in zip(items, _bytes(rows), strict=True):
                place.raw = row
                normals.raw = none
                yield item
        else:
            for item, row in zip(items, _bytes(rows), strict=True):
                place.raw = row
                yield item

    @abstractmethod
    def _place(self, rows: Words, words: Words) -> int:
        """Where to write a row; it may have to be changed for that."""


class OfTorch(_InMemory):
    """Streams of torch's CPU generator: the words stand at the beginning, and no more of them are left."""

    before = TORCH_HEAD.size // 4

    def __init__(self, address: int) -> None:
        none = TORCH_NORMALS.pack(_NEVER_DRAWN, False, _NEVER_DRAWN, False)
        super().__init__(1, view(address + TORCH_NORMALS_AT, TORCH_NORMALS.size), none)
        self._address = address

    def _unwritten(self) -> ctypes.c_uint32:
        return word(self._address + TORCH_HEAD.size + 4 * (ALL - 1))

    def _complete(self, rows: Words) -> None:
        rows[:, : self.before] = np.frombuffer(TORCH_HEAD.pack(0, _left(self.made), True, 0), np.uint32)

    def _place(self, rows: Words, words: Words) -> int:
        rows[:, 0] = words[:, 0]  # the seed
        return self._address


class OfNumpy(_InMemory):
    """Streams of numpy's global generator: the words stand at the end, and the position follows them."""

    after = 1

    def __init__(self, normal: Memory) -> None:
        super().__init__(2, normal, NUMPY_NORMAL_OF.pack(False, _NEVER_DRAWN))

    def _unwritten(self) -> ctypes.c_uint32:
        return word(numpy_address())

    def _complete(self, rows: Words) -> None:
        rows[:, -1] = _position(self.made)

    def _place(self, rows: Words, words: Words) -> int:  # noqa: ARG002  # torch's has the seed in its rows
        _last_first(words)
        return numpy_address() + 4 * (ALL - self.made)


class OfPython(Stream):
    """Streams of Python's generator: the words stand at the end, and the position is before all of them."""

    def __init__(self) -> None:
        super().__init__(3)

    def _unwritten(self) -> ctypes.c_uint32:
        return word(PYTHON_ADDRESS + 4)

    def _each(self, rows: Words, words: Words, items: Iterable[int]) -> Iterator[int]:
        _last_first(words)
        begin = _position(self.made)
        position, place = word(PYTHON_ADDRESS), view(PYTHON_ADDRESS + 4 * (1 + ALL - self.made), 4 * self.made)
        for item, row in zip(items, _bytes(rows), strict=True):
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

    def _each(self, rows: Words, words: Words, items: Iterable[int]) -> Iterator[int]:  # noqa: ARG002  # nothing is beside them
        for item, row in zip(items, words, strict=True):
            self._set_state(row)
            yield item


def of_torch(address: int | None = TORCH_ADDRESS) -> Stream:
    """Streams of torch's CPU generator, whose head is at ``address``."""
    return BySetting(1, _set_torch) if address is None else OfTorch(address)


def of_numpy(normal: Memory | None = NUMPY_NORMAL) -> Stream:
    """Streams of numpy's global generator, which keeps a normal number at ``normal``."""
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


def _last_first(rows: Words) -> None:
    """As they stand where all are made: the first place has the last word."""
    if rows.shape[1] == ALL:
        rows[:] = np.roll(rows, 1, axis=1)


def _bytes(rows: Words) -> list[bytes]:
    """Of each row."""
    each: list[bytes] = rows.view(f"V{rows.strides[0]}").ravel().tolist()
    return each
