"""float32 as 16 bits on the wire: half the bytes, at the price of rounding once before the sum and once after it.

8 bits, see :mod:`pilot.comm.int8`, are for rounds of seldom-synchronised training only.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from pilot.comm import int8

Words = NDArray[np.uint16]
Floats = NDArray[np.float32]

KINDS = ("bfloat16", "float16")
"""``bfloat16`` has float32's range and 8 bits of fraction, ``float16`` 11 bits up to 65,504 (beyond: infinite)."""
WIRES = (*KINDS, "int8")

_HALF, _ONE, _16 = np.uint32(0x7FFF), np.uint32(1), np.uint32(16)
_NAN = np.uint16(0x7FC0)
_13, _SIZE, _STEP = np.uint32(13), np.uint32(0x7FFFFFFF), np.uint32(1 << 23)
_BIAS, _REBIAS = np.uint32(112 << 23), np.uint32(0xFFF - (112 << 23) & 0xFFFFFFFF)
_HALF_NORMAL, _HALF_INFINITE, _INFINITE = np.uint32(113 << 23), np.uint32(143 << 23), np.uint32(255 << 23)
_HALF_BITS, _HALF_NAN, _HALF_SIGN = np.uint32(126 << 23), np.uint32(0x7E00), np.uint32(0x8000)
_LEAST_NORMAL = np.float32(2.0**-14)
_BLOCK = 1 << 15
"""So many numbers are rounded at once: they stay in the cache through all passes, which is ten times as fast."""


def packed(numbers: Floats, ranks: int, wire: str) -> NDArray[Any]:
    """Return ``numbers``, rounded, in a row for each of the ``ranks``, as they are sent; the last ones are padded."""
    if wire == "int8":
        return int8.packed(numbers, ranks)
    rows = np.zeros((ranks, -(-len(numbers) // ranks)), np.uint16)
    rows.reshape(-1)[: len(numbers)] = narrowed(numbers, wire)
    return rows


def unpacked(rows: NDArray[Any], wire: str) -> Floats:
    """Return the numbers of ``rows``, shape (rows, numbers of each)."""
    return int8.unpacked(rows) if wire == "int8" else widened(rows, wire)


def narrowed(numbers: Floats, kind: str) -> Words:
    """``numbers`` rounded to the nearest value of ``kind``, ties to even, as bit patterns."""
    words = np.empty(len(numbers), np.uint16)
    rounded = _round_half if kind == "float16" else _round
    room = np.empty((2, _BLOCK), np.uint32)
    for start in range(0, len(numbers), _BLOCK):
        block = numbers[start : start + _BLOCK]
        rounded(block, room[:, : len(block)], words[start : start + _BLOCK])
    return words


def _round(numbers: Floats, rooms: NDArray[np.uint32], words: Words) -> None:
    bits, room = numbers.view(np.uint32), rooms[0]
    np.right_shift(bits, _16, out=room)
    np.bitwise_and(room, _ONE, out=room)
    np.add(room, _HALF, out=room)
    np.add(room, bits, out=room)
    np.right_shift(room, _16, out=room)
    words[:] = room
    if (wrong := np.isnan(numbers)).any():
        words[wrong] = _NAN  # the rounding could carry into its exponent


def _round_half(numbers: Floats, room: NDArray[np.uint32], words: Words) -> None:
    """Like Giesen's ``float_to_half_fast3_rtne`` (gist.github.com/rygorous/2156668). numpy's own conversion takes up to
    20 times as long when results are subnormal, as those of most gradients are.
    """
    bits, (size, half) = numbers.view(np.uint32), room
    np.bitwise_and(bits, _SIZE, out=size)
    np.right_shift(size, _13, out=half)
    np.bitwise_and(half, _ONE, out=half)
    np.add(half, _REBIAS, out=half)
    np.add(half, size, out=half)
    np.right_shift(half, _13, out=half)
    if (small := size < _HALF_NORMAL).any():  # an addition rounds them
        with np.errstate(invalid="ignore"):
            half_bits = (size.view(np.float32) + np.float32(0.5)).view(np.uint32) - _HALF_BITS
        np.copyto(half, half_bits, where=small)
    if (large := size >= _HALF_INFINITE).any():
        half[large] = np.where(size[large] > _INFINITE, _HALF_NAN, _HALF_NAN - np.uint32(0x200))
    np.right_shift(bits, _16, out=size)
    np.bitwise_and(size, _HALF_SIGN, out=size)
    np.bitwise_or(half, size, out=half)
    words[:] = half


def widened(words: Words, kind: str) -> Floats:
    """The numbers of these bit patterns, in an array of the same shape."""
    if kind == "float16":
        return _widened_half(words.reshape(-1)).reshape(words.shape)
    return np.left_shift(words, _16, dtype=np.uint32).view(np.float32)


def _widened_half(words: Words) -> Floats:
    numbers = np.empty(len(words), np.float32)
    for start in range(0, len(words), _BLOCK):
        block = words[start : start + _BLOCK]
        size = np.left_shift(block & np.uint16(0x7FFF), _13, dtype=np.uint32)
        bits = size + _BIAS
        if (small := size < _STEP).any():
            np.copyto(bits, ((bits + _STEP).view(np.float32) - _LEAST_NORMAL).view(np.uint32), where=small)
        np.add(bits, _BIAS, out=bits, where=size >= np.uint32(0x1F << 23))
        np.bitwise_or(bits, np.left_shift(block & np.uint16(0x8000), _16, dtype=np.uint32), out=bits)
        numbers[start : start + _BLOCK] = bits.view(np.float32)
    return numbers
