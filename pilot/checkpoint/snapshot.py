"""A consistent copy of a state, made in one memory copy, so that training continues while the copy is written."""

from __future__ import annotations

from itertools import accumulate

import numpy as np
import torch

from pilot.checkpoint.leaves import Leaf
from pilot.checkpoint.tree import Encoded

_ALIGN_BYTES = 64

Kind = tuple[torch.dtype, torch.Size]


class Snapshots:
    """Copies states into one reused buffer: after the first copy no memory is allocated.

    A copy is valid until the next is taken, so take the next only after the last was written. Tensors that share memory
    (tied parameters) are copied once. Tensors on a GPU are copied to pinned memory, all concurrently.
    """

    def __init__(self) -> None:
        self._buffer = torch.empty(0, dtype=torch.uint8)
        self._kinds: list[Kind] = []
        self._targets: list[torch.Tensor] = []

    def take(self, encoded: Encoded) -> Encoded:
        """``encoded`` with a copy of every leaf. It must not change meanwhile."""
        sources = [leaf.source for leaf in encoded.leaves]
        targets = iter(self._copy([source for source in sources if isinstance(source, torch.Tensor)]))
        copies = [next(targets) if isinstance(source, torch.Tensor) else source.copy() for source in sources]
        leaves = [
            Leaf(leaf.path, leaf.dtype, leaf.shape, copy, leaf.rows)
            for leaf, copy in zip(encoded.leaves, copies, strict=True)
        ]
        return Encoded(encoded.tree, leaves, encoded.aliases)

    def _copy(self, sources: list[torch.Tensor]) -> list[torch.Tensor]:
        gpu = next((tensor.device for tensor in sources if tensor.device.type != "cpu"), None)
        on_gpu = gpu is not None
        self._fit([(tensor.dtype, tensor.shape) for tensor in sources], on_gpu)
        if sources:
            torch._foreach_copy_(self._targets, sources, non_blocking=on_gpu)
        if gpu is not None:
            torch.accelerator.synchronize(gpu)
        return self._targets

    def _fit(self, kinds: list[Kind], pinned: bool) -> None:
        """Make ``_targets`` views of the buffer that fit ``kinds``; they stay in place while nothing changes."""
        if kinds == self._kinds and (not pinned or self._buffer.is_pinned()):
            return
        sizes = [dtype.itemsize * shape.numel() for dtype, shape in kinds]
        starts = list(accumulate((-(-size // _ALIGN_BYTES) * _ALIGN_BYTES for size in sizes), initial=0))
        if self._buffer.numel() < starts[-1] or (pinned and not self._buffer.is_pinned()):
            self._buffer = _room(starts[-1], pinned)
        self._kinds = kinds
        self._targets = [
            self._buffer[start : start + size].view(dtype).view(shape)
            for start, size, (dtype, shape) in zip(starts, sizes, kinds, strict=False)
        ]


def _room(size: int, pinned: bool) -> torch.Tensor:
    if pinned:
        return torch.empty(size, dtype=torch.uint8, pin_memory=True)
    return torch.from_numpy(np.empty(size, np.uint8))  # numpy requests huge pages: a third of the time
