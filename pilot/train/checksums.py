"""A checksum of a tensor's exact content, about as fast as reading it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import xxhash

from pilot.checkpoint.leaves import bytes_in_line
from pilot.checkpoint.shards import local_of

MODULUS = 65_521
"""The largest 16-bit prime: sums of squares over 1000 ranks stay exact in float64."""

_MIX = 0x9E3779B97F4A7C15 - (1 << 64)
"""An odd number, from SplitMix64. A plain sum of bits would miss +x on one number and -x on another."""

_PIECE_BYTES = 1 << 22


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
