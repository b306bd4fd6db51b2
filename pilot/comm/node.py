"""The sum inside a node, over the arrays of its training processes; the first one's then goes to the network."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

PIECE_BYTES = 256 * 1024
"""How much to add or copy at once: it stays in the cache for all arrays, and MPI can progress in between."""


def add_up(arrays: Sequence[NDArray[np.generic]], drive: Callable[[], object]) -> None:
    """Add the other ``arrays`` to the first, in the order of the ranks; ``drive`` is called after each piece."""
    first, *others = arrays
    if others:
        for piece in _pieces(first):
            for other in others:
                np.add(first[piece], other[piece], out=first[piece])
            drive()


def hand_out(arrays: Sequence[NDArray[np.generic]], drive: Callable[[], object]) -> None:
    """Copy the first of ``arrays`` to the others; ``drive`` is called after each piece."""
    first, *others = arrays
    if others:
        for piece in _pieces(first):
            for other in others:
                other[piece] = first[piece]
            drive()


def _pieces(array: NDArray[np.generic]) -> list[slice]:
    count = PIECE_BYTES // array.itemsize
    return [slice(start, start + count) for start in range(0, len(array), count)]
