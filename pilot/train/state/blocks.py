"""Exchanges values between ranks by gathering rows of numbers of equal length."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import msgspec
import numpy as np

_WORD_BYTES = 8
LONGEST_ROW = 4096
"""A row is one packet to the rank process."""
Gather = Callable[[list[int]], list[list[int]]]
"""Returns the rows of all ranks."""
_Value = TypeVar("_Value")


def gather_values(own: _Value, kind: Any, gather: Gather) -> list[_Value]:
    """The values of all ranks, by rank; each is of type ``kind``."""
    block = msgspec.msgpack.encode(own)
    sizes = [size for (size,) in gather([len(block)])]
    length = -(-max(sizes) // _WORD_BYTES) * _WORD_BYTES
    words: list[int] = np.frombuffer(block.ljust(length, b"\0"), np.int64).tolist()
    rows: list[list[int]] = [[] for _ in sizes]
    for begin in range(0, len(words), LONGEST_ROW):
        for row, piece in zip(rows, gather(words[begin : begin + LONGEST_ROW]), strict=True):
            row += piece
    blocks = (np.array(row, np.int64).tobytes()[:size] for row, size in zip(rows, sizes, strict=True))
    return [msgspec.msgpack.decode(one, type=kind) for one in blocks]
