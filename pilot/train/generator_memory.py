"""Where torch's, numpy's and Python's random generators keep their states in memory: the generators' own functions copy
them as a whole, which takes microseconds.

All three are Mersenne Twisters: 624 words, and how many of them were drawn; after the last one all are regenerated.
Normal numbers are drawn in pairs, the second of which is kept for the next call.
"""

from __future__ import annotations

import ctypes
import random
import struct
from typing import Any

import numpy as np
import torch
from numpy.random import mtrand

ALL = 624
"""Words of a state."""

PYTHON: Any = random.random.__self__  # type: ignore[attr-defined]  # typeshed calls it a function
PYTHON_ADDRESS = id(PYTHON) + object.__basicsize__
"""Of the position, which the words follow; the kept normal number is ``PYTHON.gauss_next``."""

TORCH_HEAD = struct.Struct("Qi?3xI")
"""Before the words: the seed, how many words are left plus one, whether it is seeded, and which word is next."""
TORCH_NORMALS = struct.Struct("f?3xd?")
"""After the words and 4 more bytes: two kept normal numbers, each followed by whether there is one."""
TORCH_NORMALS_AT = TORCH_HEAD.size + 4 * ALL + 4
_TORCH_COPY_WORDS, _TORCH_COPY_NORMALS = slice(3, 3 + ALL), 8 * (3 + ALL + 1)
"""Where ``get_state`` has the words, of 8 bytes each (index), and the kept normal numbers (bytes)."""

_RARE = 0x5DEECE66D1CE4E
"""A number to search for in memory."""


def view(address: int, size: int) -> ctypes.Array[ctypes.c_char]:
    """Memory to read and write, by ``raw``."""
    return (ctypes.c_char * size).from_address(address)


def word(address: int) -> ctypes.c_uint32:
    """One word, to read and write by ``value``."""
    return ctypes.c_uint32.from_address(address)


def numpy_address() -> int:
    """Where the words of numpy's global generator are, which the position follows. A script may replace it."""
    address: int = mtrand.get_bit_generator().ctypes.state_address
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
    words = state.numpy().view(np.uint64)[_TORCH_COPY_WORDS].astype(np.uint32).tobytes()
    as_expected = (
        TORCH_HEAD.unpack_from(found) == (_RARE, 1, True, 0)
        and found[TORCH_HEAD.size :].startswith(words)
        and TORCH_NORMALS.unpack_from(found, TORCH_NORMALS_AT) == normals
    )
    return address if as_expected else None


def numpy_normal() -> ctypes.c_uint64 | None:
    """Whether numpy keeps a normal number, 1 or 0. None: not found."""
    holder: Any = mtrand._rand
    before: Any = np.random.get_state()
    np.random.set_state((*before[:3], 1, float(_RARE)))
    address = _find(struct.pack("Qd", 1, _RARE), id(holder), type(holder).__basicsize__)
    np.random.set_state(before)
    return None if address is None else ctypes.c_uint64.from_address(address)


def _find(mark: bytes, address: int, size: int) -> int | None:
    """Where ``mark`` is in the ``size`` bytes at ``address``."""
    place = ctypes.string_at(address, size).find(mark)
    return None if place < 0 else address + place


TORCH_ADDRESS = torch_address()
NUMPY_NORMAL = numpy_normal()
