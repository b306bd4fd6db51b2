"""A state (nested containers with tensors as leaves) as one block of bytes and back: no pickle, one copy of each
tensor.

The block: the length of the index (8 bytes, little endian), the index (MessagePack), then each tensor at a multiple
of 64 bytes. In the index a container is a list that begins with its kind; a tensor is its dtype, shape and offset.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
import torch

from pilot.comm.arena import Arena, aligned
from pilot.core.errors import UserError

_HEAD_BYTES = 8
Buffer = Any  # what the buffer protocol takes: bytes, mmap, memoryview


class Packed:
    """A state measured and indexed, before its bytes are copied.

    Parameters
    ----------
    state : nested dicts (keys str or int), lists and tuples; leaves are tensors, numpy arrays and scalars, bytes,
        str, int, float, bool and None
    """

    def __init__(self, state: Mapping[str, Any]) -> None:
        self._tensors: list[tuple[int, torch.Tensor]] = []
        self._end = 0
        index = msgspec.msgpack.encode(self._index(state, "state"))
        self._index_bytes = len(index).to_bytes(_HEAD_BYTES, "little") + index
        self._start = aligned(len(self._index_bytes))

    @property
    def size(self) -> int:
        """Bytes of the block."""
        return self._start + self._end

    def write(self, block: Buffer) -> None:
        """Fill ``block``, a writable buffer of ``size`` bytes."""
        memoryview(block)[: len(self._index_bytes)] = self._index_bytes
        for offset, tensor in self._tensors:
            view = torch.frombuffer(block, dtype=tensor.dtype, count=tensor.numel(), offset=self._start + offset)
            view.view(tensor.shape).copy_(tensor)

    def to_arena(self) -> Arena:
        """The block in shared memory."""
        arena = Arena.of_size(self.size)
        self.write(arena.memory)
        return arena

    def _index(self, node: Any, where: str) -> Any:
        match node:
            case None | bool() | int() | float() | str() | bytes():
                return node
            case Mapping():
                return ["map", [[self._key(k, where), self._index(v, f"{where}[{k!r}]")] for k, v in node.items()]]
            case list() | tuple():
                kind = "list" if isinstance(node, list) else "tuple"
                return [kind, [self._index(v, f"{where}[{i}]") for i, v in enumerate(node)]]
            case torch.Tensor():
                return self._place("tensor", node.detach(), where)
            case np.ndarray():
                return self._place("array", torch.from_numpy(np.ascontiguousarray(node)), where)
            case np.generic():
                return node.item()
        raise UserError(
            f"{where} is a {type(node).__name__}: a state holds numbers, strings, tensors, arrays, lists and dicts"
        )

    def _key(self, key: Any, where: str) -> Any:
        if isinstance(key, str | int):
            return key
        raise UserError(f"{where} has the key {key!r}: the keys of a state are strings or integers")

    def _place(self, kind: str, tensor: torch.Tensor, where: str) -> Any:
        if tensor.layout is not torch.strided:
            raise UserError(f"{where} is a sparse tensor: a state holds dense ones")
        offset, self._end = self._end, aligned(self._end + tensor.numel() * tensor.element_size())
        if tensor.numel():
            self._tensors.append((offset, tensor))
        return [kind, str(tensor.dtype).removeprefix("torch."), list(tensor.shape), offset]


def unpack(block: Buffer) -> dict[str, Any]:
    """The state in ``block``; its tensors look into the block and keep it alive."""
    length = int.from_bytes(memoryview(block)[:_HEAD_BYTES], "little")
    index = msgspec.msgpack.decode(memoryview(block)[_HEAD_BYTES : _HEAD_BYTES + length])
    state: dict[str, Any] = _restore(index, block, aligned(_HEAD_BYTES + length))
    return state


def _restore(node: Any, block: Buffer, start: int) -> Any:
    match node:
        case ["map", items]:
            return {key: _restore(value, block, start) for key, value in items}
        case ["list", items]:
            return [_restore(value, block, start) for value in items]
        case ["tuple", items]:
            return tuple(_restore(value, block, start) for value in items)
        case ["tensor", dtype, shape, offset]:
            return _tensor(block, dtype, shape, start + offset)
        case ["array", dtype, shape, offset]:
            return _tensor(block, dtype, shape, start + offset).numpy()
    return node


def _tensor(block: Buffer, dtype: str, shape: list[int], offset: int) -> torch.Tensor:
    kind: torch.dtype = getattr(torch, dtype)
    count = int(np.prod(shape, dtype=np.int64))
    if not count:
        return torch.empty(shape, dtype=kind)
    return torch.frombuffer(block, dtype=kind, count=count, offset=offset).view(shape)


def copied(node: Any) -> Any:
    """The same containers with a copy of each tensor and array: a state that no later step changes."""
    match node:
        case Mapping():
            return {key: copied(value) for key, value in node.items()}
        case list() | tuple():
            return type(node)(copied(value) for value in node)
        case torch.Tensor():
            return node.detach().clone()
        case np.ndarray():
            return node.copy()
    return node
