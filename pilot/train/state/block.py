"""Packs a state into one block of bytes, to send it between ranks, and back: no pickle, one copy of each tensor.

The block: the length of the index (8 bytes, little endian), the index (MessagePack: the tree of
:mod:`pilot.checkpoint.tree`, and path, type, shape and offset of each leaf), then each leaf at a multiple of 64 bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from math import prod
from typing import Any

import msgspec
import numpy as np

from pilot.checkpoint import dtypes, leaves, tree
from pilot.checkpoint.tree import Encoded
from pilot.comm.arena import Arena, aligned
from pilot.core.errors import UserError

_HEAD_BYTES = 8
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
    """A state with known size and index, before its bytes are copied.

    Parameters
    ----------
    encoded : the state; its leaves must not change until they are written
    """

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


def packed(encoded: Encoded) -> bytearray:
    """The block of a state."""
    one = Packed(encoded)
    block = bytearray(one.size)
    one.write(block)
    return block


def in_host_memory(state: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of ``state``, as another rank receives it."""
    return unpack(packed(encoded(state)))


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
