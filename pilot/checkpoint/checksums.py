"""A checksum of a tensor's exact content, about as fast as reading it, and of other values that a state may hold."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import torch
import xxhash

from pilot.checkpoint.leaves import bytes_in_line, why_no_array, why_no_tensor
from pilot.checkpoint.shards import is_sharded, local_of

MODULUS = 65_521
"""The largest 16-bit prime: sums of squares over 1000 ranks stay exact in float64."""

_MIX = 0x9E3779B97F4A7C15 - (1 << 64)
"""An odd number, from SplitMix64. A plain sum of bits would miss +x on one number and -x on another."""

_PIECE_BYTES = 1 << 22
_MOST_BYTES = 1 << 24
_MOST_ITEMS = 10_000
"""Limits of a tensor or array within a value, and of a list; of larger ones (a replay memory) only every n-th item
is read."""


def of_tensors(tensors: Sequence[torch.Tensor]) -> list[int]:
    """The checksum of each, below :data:`MODULUS`; it depends on shape and values, not on strides. For a shard: of its
    rows."""
    tensors = [local_of(tensor) for tensor in tensors]
    on_cpu = [_hashed(tensor) if tensor.is_cpu else 0 for tensor in tensors]
    elsewhere = [tensor for tensor in tensors if not tensor.is_cpu]
    if not elsewhere:
        return on_cpu
    summed = iter(torch.stack([_summed(tensor) for tensor in elsewhere]).tolist())  # one wait for the device
    return [number if t.is_cpu else int(next(summed)) % MODULUS for t, number in zip(tensors, on_cpu, strict=True)]


def _hashed(tensor: torch.Tensor) -> int:
    """Not by ``tensor.numpy()``: torch lets nobody resize such a tensor any more."""
    return xxhash.xxh3_64_intdigest(np.from_dlpack(bytes_in_line(tensor)).data) % MODULUS if tensor.numel() else 0


def _summed(tensor: torch.Tensor) -> torch.Tensor:
    """Computed on the tensor's device: the sum of all words, each mixed with its index, modulo 2^64; in pieces, to
    limit memory.
    """
    total = torch.zeros((), dtype=torch.int64, device=tensor.device)
    for piece in bytes_in_line(tensor).split(_PIECE_BYTES):  # type: ignore[no-untyped-call]  # torch has no types for it
        numbers = (piece.to(torch.int64) + torch.arange(len(piece), device=piece.device)) * _MIX
        total = total * 31 + (numbers ^ (numbers >> 29)).sum()
    return total


def of_value(value: Any) -> int:
    """The checksum of what ``session.state`` may hold, below :data:`MODULUS`: the same for sets with the same elements,
    whatever their order.
    """
    if isinstance(value, list | tuple) and len(value) > _MOST_ITEMS:
        value = [len(value), *value[:: 1 + len(value) // _MOST_ITEMS]]
    return int(xxhash.xxh3_64_intdigest(_bytes_of(value)) % MODULUS)


def _bytes_of(value: Any) -> bytes:
    for encoder in (_SORTED, _AS_IT_IS):  # the first one takes no dict with numbers as keys
        try:
            return encoder.encode(value)
        except (TypeError, ValueError, OverflowError, RecursionError):
            continue
    return repr(value).encode(errors="backslashreplace")


def _encodable(value: Any) -> Any:
    """Replace a value that MessagePack has no type for; a shard, which only some ranks have, by its shape."""
    if isinstance(value, torch.Tensor) and is_sharded(value):
        return [*value.shape]
    if isinstance(value, torch.Tensor) and not why_no_tensor(value):
        every = 1 + value.numel() * value.element_size() // _MOST_BYTES
        plain = value.detach()
        return [*value.shape, *of_tensors([plain if every == 1 else plain.reshape(-1)[::every]])]
    if isinstance(value, np.ndarray) and not why_no_array(value):
        every = 1 + value.nbytes // _MOST_BYTES
        return [value.dtype.str, *value.shape, (value if every == 1 else value.reshape(-1)[::every]).tobytes()]
    return repr(value)


_SORTED = msgspec.msgpack.Encoder(enc_hook=_encodable, order="deterministic")
_AS_IT_IS = msgspec.msgpack.Encoder(enc_hook=_encodable)
