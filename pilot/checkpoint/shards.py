"""Sharded tensors, of which a process holds some rows: a model that ``fully_shard`` divides over a node's processes.

Process i of L has rows [i·c, (i + 1)·c) of n, with c = ⌈n / L⌉; the last processes have fewer, or none
(``torch.chunk``). In a state, a shard is a leaf with the local rows; it is saved as rows of the complete tensor, so
that a checkpoint does not depend on the number of processes.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from math import prod
from typing import Any

import torch


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of a tensor of shape ``full_shape`` in a shard: from ``first`` on, ``count`` of them."""

    full_shape: tuple[int, ...]
    first: int
    count: int


def is_sharded(tensor: torch.Tensor) -> bool:
    """Whether it is a ``DTensor``. (There is none as long as the module, which is slow to import, is not imported.)"""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)


def local_of(tensor: torch.Tensor) -> torch.Tensor:
    """The local rows as a plain tensor; a plain tensor is returned as it is."""
    if not is_sharded(tensor):
        return tensor
    rows: torch.Tensor = tensor._local_tensor  # type: ignore[attr-defined]  # of DTensor
    return rows


def rows_of(tensor: torch.Tensor) -> Rows | None:
    """The local rows of ``tensor``; None: it is a plain tensor."""
    if not is_sharded(tensor):
        return None
    mesh: Any = tensor.device_mesh  # type: ignore[attr-defined]  # of DTensor
    return rows_on(tuple(tensor.shape), mesh.get_local_rank(), mesh.size())


def why_no_rows(tensor: torch.Tensor) -> str | None:
    """Why it is not known which rows of ``tensor`` are local, and what to do; None if it is known."""
    if not is_sharded(tensor):
        return None
    mesh: Any = tensor.device_mesh  # type: ignore[attr-defined]  # of DTensor
    placements: Any = tensor.placements  # type: ignore[attr-defined]  # of DTensor
    if mesh.ndim == 1 and placements[0].is_shard(dim=0):
        return None
    return f"is a DTensor that is not divided by rows (its placements are {placements}): store a plain tensor"


def rows_on(full_shape: tuple[int, ...], rank: int, size: int) -> Rows:
    """The rows of process ``rank`` of ``size``."""
    each = -(-full_shape[0] // size)
    first = min(each * rank, full_shape[0])
    return Rows(full_shape, first, min(each * (rank + 1), full_shape[0]) - first)


def padded_numel(tensor: torch.Tensor) -> int:
    """The size of the first process's shard, which is the largest; of a plain tensor, its size."""
    if not is_sharded(tensor):
        return tensor.numel()
    mesh: Any = tensor.device_mesh  # type: ignore[attr-defined]  # of DTensor
    size: int = mesh.size()
    return -(-tensor.shape[0] // size) * prod(tensor.shape[1:])


def like(tensor: torch.Tensor, local: torch.Tensor) -> torch.Tensor:
    """``local`` as the shard of a tensor that is divided like ``tensor``."""
    if not is_sharded(tensor):
        return local
    made: torch.Tensor = type(tensor).from_local(  # type: ignore[attr-defined]  # of DTensor
        local,
        tensor.device_mesh,  # type: ignore[attr-defined]  # of DTensor
        tensor.placements,  # type: ignore[attr-defined]  # of DTensor
        run_check=False,
        shape=tensor.shape,
        stride=tensor.stride(),
    )
    return made


def summed_up(value: torch.Tensor) -> float:
    """The value of a scalar that may be a partial result on each process."""
    total: torch.Tensor = value.full_tensor() if is_sharded(value) else value  # type: ignore[attr-defined]  # of DTensor
    return float(total)
