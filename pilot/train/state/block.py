"""What ranks send each other: a state, packed into one block of bytes without pickle, with one copy of each tensor; and
small values, by gathering rows of numbers of equal length.

A state's block: the length of the index (8 bytes, little endian), the index (MessagePack: the tree of
:mod:`pilot.checkpoint.tree`, and path, type, shape and offset of each leaf), then each leaf at a multiple of 64 bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from math import prod
from typing import Any, TypeVar

import msgspec
import numpy as np

from pilot.checkpoint import dtypes, leaves, tree
from pilot.checkpoint.tree import Encoded
from pilot.comm.arena import Arena, aligned
from pilot.core.errors import UserError

_HEAD_BYTES = 8
_WORD_BYTES = 8
LONGEST_ROW = 4096
"""A row is one packet to the rank process."""
Gather = Callable[[list[int]], list[list[int]]]
"""Returns the rows of all ranks."""
_Value = TypeVar("_Value")
Buffer = Any  # what the buffer protocol takes: bytes, mmap, memoryview


def encoded(state: Mapping[str, Any]) -> tree.Encoded:
    """Encode a result of :meth:`Training.capture <pilot.train.state.training.Training.capture>`; :class:`UserError`
    names what cannot be stored.
    """
    try:
        return tree.encode(state)
    except tree.Unstorable as error:
        raise UserError(f"{_as_written(error.keys)} {error.what}") from None


class Packed:
    """A state with known size and index, before its bytes are copied; its leaves must not change until then."""

    def __init__(self, encoded: Encoded) -> None:
        self._leaves = encoded.leaves
        *self._offsets, self._end = accumulate((aligned(leaf.size) for leaf in self._leaves), initial=0)
        rows = [
            (leaf.path, leaf.dtype, leaf.shape, offset)
            for leaf, offset in zip(self._leaves, self._offsets, strict=True)
        ]
        index = msgspec.msgpack.encode((encoded.tree, rows))
        self._index_bytes = len(index).to_bytes(_HEAD_BYTES, "little") + index
        self._start = aligned(len(self._index_bytes))

    @property
    def size(self) -> int:
        """Size of the block in bytes."""
        return self._start + self._end

    def write(self, block: Buffer) -> None:
        """Fill ``block``, a writable buffer of at least ``size`` bytes."""
        memoryview(block)[: len(self._index_bytes)] = self._index_bytes
        flat = np.frombuffer(block, np.uint8)[self._start :]
        for leaf, offset in zip(self._leaves, self._offsets, strict=True):
            leaf.write(flat[offset : offset + leaf.size])

    def to_bytes(self) -> bytearray:
        """The block, of its own."""
        block = bytearray(self.size)
        self.write(block)
        return block

    def to_arena(self) -> Arena:
        """The block in shared memory."""
        arena = Arena.of_size(self.size)
        self.write(arena.memory)
        return arena


def unpack(block: Buffer) -> dict[str, Any]:
    """The state in ``block``; its tensors and arrays are views of the block and keep it alive."""
    length = int.from_bytes(memoryview(block)[:_HEAD_BYTES], "little")
    structure, rows = msgspec.msgpack.decode(memoryview(block)[_HEAD_BYTES : _HEAD_BYTES + length])
    flat = np.frombuffer(block, np.uint8)[aligned(_HEAD_BYTES + length) :]
    arrays = {path: _leaf(flat, dtype, tuple(shape), offset) for path, dtype, shape, offset in rows}
    state: dict[str, Any] = tree.decode(structure, lambda kind, path: leaves.of_kind(kind, arrays[path]))
    return state


def in_host_memory(state: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of ``state``, as another rank receives it."""
    return unpack(Packed(encoded(state)).to_bytes())


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


def _leaf(flat: leaves.Bytes, dtype: str, shape: tuple[int, ...], offset: int) -> Any:
    return leaves.shaped(dtype, shape, flat[offset : offset + prod(shape) * dtypes.itemsize(dtype)])


def _as_written(keys: Sequence[Any]) -> str:
    match keys:
        case ["user", *rest]:
            return tree.place("session.state", rest)
        case ["optimizer", str(part), *rest]:
            return tree.place(f"optimizer.{part}", rest)
        case ["tracked", str(name), *rest]:
            return tree.place(f"{name}.state_dict()", rest)
        case [str(part), *rest]:
            return tree.place(f"{part}.state_dict()", rest)
    return "the state"
