"""float32 as 16 bits on the wire: half the bytes, for a rounding before the sum and one after it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint16]
Floats = NDArray[np.float32]

KINDS = ("bfloat16", "float16")
"""``bfloat16`` has float32's range and 8 bits of fraction, ``float16`` 11 bits up to 65,504 (beyond: infinite)."""

_HALF, _ONE = np.uint32(0x7FFF), np.uint32(1)
_NAN = np.uint16(0x7FC0)


def narrowed(numbers: Floats, kind: str) -> Words:
    """``numbers`` rounded to the nearest of ``kind``, ties to even, as bit patterns."""
    if kind == "float16":
        with np.errstate(over="ignore"):
            return numbers.astype(np.float16).view(np.uint16)
    bits = numbers.view(np.uint32)
    words = ((bits + (_HALF + ((bits >> 16) & _ONE))) >> 16).astype(np.uint16)
    words[np.isnan(numbers)] = _NAN  # the rounding could carry into its exponent
    return words


def widened(words: Words, kind: str) -> Floats:
    """The numbers of these bit patterns."""
    if kind == "float16":
        return words.view(np.float16).astype(np.float32)
    return (words.astype(np.uint32) << 16).view(np.float32)
