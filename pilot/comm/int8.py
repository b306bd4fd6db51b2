"""float32 as 8-bit integers on the wire, in blocks of about :data:`BLOCK` numbers with one float32 scale each.

A block's largest absolute value is 127 of its scale; each number is rounded to a multiple of the scale, so it is off by
at most 1/254 of that value. Zeros stay zero. If a number of a block is not finite, the whole block becomes NaN; if all
are below 4e-37, they become zero.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Blocks = NDArray[Any]
"""Records of a ``scale`` and ``values``."""

BLOCK = 1024
_AT_ONCE = 64
"""So many blocks stay in the cache through all passes of rounding."""
_ROUNDER = np.float32(3 << 22)
"""Adding it leaves the nearest integer (ties to even), as two's complement, in a float32's last bits."""


@np.errstate(all="ignore")
def packed(numbers: Floats, ranks: int) -> Blocks:
    """Return ``numbers`` in blocks of one length, the last ones padded; shape (ranks, blocks of each). What it has
    unpacked, it packs in the same blocks.
    """
    blocks = -(-len(numbers) // (ranks * BLOCK))
    length = -(-len(numbers) // (ranks * blocks))
    rows = np.zeros((ranks, blocks), [("scale", np.float32), ("values", np.int8, (length,))])
    padded = np.pad(numbers, (0, rows.size * length - len(numbers)))
    _round(padded.reshape(-1, length), rows.reshape(-1))
    return rows


@np.errstate(all="ignore")
def unpacked(rows: Blocks) -> Floats:
    """Return the numbers of ``rows``, shape (rows, numbers of each)."""
    numbers: Floats = rows["values"].astype(np.float32)
    numbers *= rows["scale"][..., None]
    return numbers.reshape(len(rows), -1)


def _round(numbers: Floats, blocks: Blocks) -> None:
    """Round ``numbers``, shape (count, length), into the first of ``blocks``."""
    room = np.empty((_AT_ONCE, numbers.shape[1]), np.float32)
    for start in range(0, len(numbers), _AT_ONCE):
        some = numbers[start : start + _AT_ONCE]
        scaled, into = room[: len(some)], blocks[start : start + len(some)]
        np.abs(some, out=scaled)
        largest = scaled.max(axis=1, keepdims=True)
        np.multiply(some, 127.0 / largest, out=scaled)
        np.add(scaled, _ROUNDER, out=scaled)
        into["values"] = scaled.view(np.int32)
        into["scale"] = np.where(np.isinf(largest), np.nan, largest / 127.0)[:, 0]
