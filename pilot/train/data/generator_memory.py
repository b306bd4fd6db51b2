"""Where torch's, numpy's and Python's random generators keep their states in memory: the generators' own functions copy
them as a whole, which takes microseconds.

All three are Mersenne Twisters: 624 words, and how many of them were drawn; after the last one all are regenerated.
Normal numbers are drawn in pairs, the second of which is kept for the next call.
"""

from __future__ import annotations

import ctypes
import random
import struct
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.random import mtrand

from pilot.core.errors import UserError

ALL = 624
"""Words of a state."""

PYTHON: Any = random.random.__self__  # type: ignore[attr-defined]  # typeshed calls it a function
PYTHON_ADDRESS = id(PYTHON) + object.__basicsize__
"""Of the position, which the words follow; the kept normal number is ``PYTHON.gauss_next``."""

TORCH_HEAD = struct.Struct("Qi?3xI")
"""Before the words: the seed, how many words are left plus one, whether it is seeded, and which word is next."""
TORCH_NORMALS = struct.Struct("f?3xd?")
"""After the words and 4 more bytes: two kept normal numbers, each followed by whether there is one."""
NUMPY_NORMAL_OF = struct.Struct("Qd")
"""Whether numpy keeps a normal number, and the number."""
TORCH_NORMALS_AT = TORCH_HEAD.size + 4 * ALL + 4
_TORCH_COPY_WORDS, _TORCH_COPY_NORMALS = slice(3, 3 + ALL), 8 * (3 + ALL + 1)
"""Where ``get_state`` has the words, of 8 bytes each (index), and the kept normal numbers (bytes)."""

Memory = ctypes.Array[ctypes.c_char]
"""Read and written by ``raw``."""

_RARE = 0x5DEECE66D1CE4E
"""A number to search for in memory."""


def view(address: int, size: int) -> Memory:
    """The memory from ``address`` on."""
    return (ctypes.c_char * size).from_address(address)


def word(address: int) -> ctypes.c_uint32:
    """One word, to read and write by ``value``."""
    return ctypes.c_uint32.from_address(address)


def numpy_address() -> int:
    """Where the words of numpy's global generator are, which the position follows. A script may replace it."""
    return _words_of(mtrand.get_bit_generator())


@lru_cache(maxsize=1)  # asking takes microseconds
def _words_of(generator: Any) -> int:
    if not isinstance(generator, np.random.MT19937):
        raise UserError(
            f"numpy's global generator is {type(generator).__name__} (by numpy.random.set_bit_generator), which cannot"
            " be seeded for a sample or a step; leave it MT19937, and use a numpy.random.Generator of your own beside"
        )
    address: int = generator.ctypes.state_address
    return address


def torch_address() -> int | None:
    """Where the head of torch's CPU generator is; None: not as expected."""
    generator: Any = torch.default_generator
    before = generator.get_state()
    normals = (0.5, True, float(_RARE), True)
    try:
        state = generator.manual_seed(_RARE).get_state()
        struct.pack_into("d8xi4xf?", state.numpy(), _TORCH_COPY_NORMALS, normals[2], True, *normals[:2])
        generator.set_state(state)
        address = _find(struct.pack("Q", _RARE), generator._cdata, 4 * ALL)
        if address is None:
            return None
        found = ctypes.string_at(address, TORCH_NORMALS_AT + TORCH_NORMALS.size)
    finally:
        generator.set_state(before)
    as_expected = (
        TORCH_HEAD.unpack_from(found) == (_RARE, 1, True, 0)
        and found[TORCH_HEAD.size :].startswith(torch_words(state))
        and TORCH_NORMALS.unpack_from(found, TORCH_NORMALS_AT) == normals
    )
    return address if as_expected else None


def torch_words(state: torch.Tensor) -> bytes:
    """The words in a result of ``get_state``."""
    return state.numpy().view(np.uint64)[_TORCH_COPY_WORDS].astype(np.uint32).tobytes()


def numpy_normal() -> Memory | None:
    """Where numpy's global generator keeps a normal number. None: not found."""
    holder: Any = mtrand._rand
    before: Any = np.random.get_state()
    np.random.set_state((*before[:3], 1, float(_RARE)))
    address = _find(NUMPY_NORMAL_OF.pack(1, _RARE), id(holder), type(holder).__basicsize__)
    np.random.set_state(before)
    return None if address is None else view(address, NUMPY_NORMAL_OF.size)


def _find(mark: bytes, address: int, size: int) -> int | None:
    """Where ``mark`` is in the ``size`` bytes at ``address``."""
    place = ctypes.string_at(address, size).find(mark)
    return None if place < 0 else address + place


TORCH_ADDRESS = torch_address()
NUMPY_NORMAL = numpy_normal()
