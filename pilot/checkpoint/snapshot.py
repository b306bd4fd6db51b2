"""A consistent copy of a state, made in one memory copy, so that training goes on while the copy is written."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import copy
from typing import Any

import numpy as np
import torch

_ALIGN_BYTES = 64


class Snapshots:
    """Copies states into one buffer that is kept: after the first copy no memory is allocated.

    A copy holds until the next is taken, so take the next only after the last was written. Tensors that share memory
    (tied parameters) are copied once. Tensors on a GPU are copied to pinned memory, all in flight at once.
    """

    def __init__(self) -> None:
        self._buffer = torch.empty(0, dtype=torch.uint8)

    def take(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """``state`` with every tensor, array and container copied. Nothing may change it meanwhile."""
        sources: dict[tuple[Any, ...], torch.Tensor] = {}
        _walk(state, lambda tensor: sources.setdefault(_identity(tensor), tensor))
        copies = self._copy(sources)
        copied: dict[str, Any] = _walk(state, lambda tensor: copies[_identity(tensor)])
        return copied

    def _copy(self, sources: Mapping[tuple[Any, ...], torch.Tensor]) -> dict[tuple[Any, ...], torch.Tensor]:
        sizes = [tensor.numel() * tensor.element_size() for tensor in sources.values()]
        starts = np.cumsum([0, *(-(-size // _ALIGN_BYTES) * _ALIGN_BYTES for size in sizes)]).tolist()
        on_gpu = any(tensor.is_cuda for tensor in sources.values())
        buffer = self._reserve(starts[-1], on_gpu)
        targets = [
            buffer[start : start + size].view(tensor.dtype).view(tensor.shape)
            for start, size, tensor in zip(starts, sizes, sources.values(), strict=False)
        ]
        with torch.no_grad():
            torch._foreach_copy_(targets, list(sources.values()), non_blocking=on_gpu)
        if on_gpu:
            torch.cuda.synchronize()
        return dict(zip(sources, targets, strict=True))

    def _reserve(self, size: int, pinned: bool) -> torch.Tensor:
        if self._buffer.numel() < size or (pinned and not self._buffer.is_pinned()):
            self._buffer = torch.empty(size, dtype=torch.uint8, pin_memory=pinned)
        return self._buffer


def snapshot(state: Mapping[str, Any]) -> dict[str, Any]:
    """One copy of ``state`` in memory of its own. Use :class:`Snapshots` to take several."""
    return Snapshots().take(state)


def _walk(value: Any, tensor: Callable[[torch.Tensor], Any]) -> Any:
    """``value`` with new containers and arrays, each tensor replaced by what ``tensor`` gives."""
    if isinstance(value, torch.Tensor):
        return tensor(value)
    if isinstance(value, Mapping):
        copied = copy(value) if isinstance(value, dict) else dict(value)
        for key, item in value.items():
            copied[key] = _walk(item, tensor)
        return copied
    if type(value) in (list, tuple):
        return type(value)(_walk(item, tensor) for item in value)
    return value.copy() if isinstance(value, np.ndarray | set | bytearray) else value


def _identity(tensor: torch.Tensor) -> tuple[Any, ...]:
    return (tensor.data_ptr() or id(tensor), tensor.device, tensor.dtype, tensor.shape, tensor.stride())
