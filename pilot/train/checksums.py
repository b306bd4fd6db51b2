"""A checksum of a tensor's exact contents that costs about as much as reading it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import xxhash

from pilot.checkpoint.shards import local_of

MODULUS = 65_521
"""The largest prime of 16 bits: sums of squares over 1000 ranks stay exact in float64."""

_MIX = 0x9E3779B97F4A7C15 - (1 << 64)
"""An odd number, as of SplitMix64. A plain sum of bits would not see +x on one number and -x on another."""

_PIECE_BYTES = 1 << 22


def of_tensors(tensors: Sequence[torch.Tensor]) -> list[int]:
    """Of each, below :data:`MODULUS`; it depends on shape and values, and not on strides. Of a shard: of its rows."""
    tensors = [local_of(tensor) for tensor in tensors]
    on_cpu = [_hashed(tensor) if tensor.is_cpu else 0 for tensor in tensors]
    elsewhere = [tensor for tensor in tensors if not tensor.is_cpu]
    if not elsewhere:
        return on_cpu
    summed = iter(torch.stack([_summed(tensor) for tensor in elsewhere]).tolist())  # one wait for the device
    return [number if t.is_cpu else int(next(summed)) % MODULUS for t, number in zip(tensors, on_cpu, strict=True)]


def _hashed(tensor: torch.Tensor) -> int:
    return xxhash.xxh3_64_intdigest(_bits(tensor).numpy().data) % MODULUS if tensor.numel() else 0


def _summed(tensor: torch.Tensor) -> torch.Tensor:
    """On the tensor's device: of all bytes' numbers, each mixed with its place; modulo 2^64, and in pieces, for it
    needs room for them.
    """
    total = torch.zeros((), dtype=torch.int64, device=tensor.device)
    for piece in _bits(tensor).split(_PIECE_BYTES):  # type: ignore[no-untyped-call]  # torch has no types for it
        numbers = (piece.to(torch.int64) + torch.arange(len(piece), device=piece.device)) * _MIX
        total = total * 31 + (numbers ^ (numbers >> 29)).sum()
    return total


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    plain = tensor.detach().resolve_conj().resolve_neg()
    return plain.contiguous().view(-1).view(torch.uint8)
