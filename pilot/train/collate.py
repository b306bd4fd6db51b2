"""Batches as torch's ``default_collate`` makes them, but faster: for small samples collating takes as long as reading
them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset, Subset, TensorDataset, default_collate, get_worker_info


class Batch(list[Any]):
    """One that was read as such, not as samples."""


def collate(samples: Any) -> Any:
    """What ``default_collate`` gives. Of plain tuples it looks at each by itself; here all are looked at together."""
    if isinstance(samples, Batch):
        return list(samples)
    if not (isinstance(samples, list) and samples and type(samples[0]) is tuple):
        return default_collate(samples)
    if len(set(map(len, samples))) != 1:
        return default_collate(samples)  # says so
    return [_column(column) for column in zip(*samples, strict=True)]


def _column(values: Any) -> Any:
    """The values in one place of all samples."""
    if type(values[0]) is torch.Tensor and get_worker_info() is None:  # in a worker they go to shared memory
        return torch.stack(values)
    if set(map(type, values)) == {int}:
        return torch.from_numpy(np.array(values, np.int64))
    return default_collate(values)


def reader(dataset: Dataset[Any]) -> Callable[[list[int]], Batch | None] | None:
    """How to read a batch of ``dataset`` without making its samples one by one (it gives None where its tensors cannot
    be read so); None: it has nothing but samples.
    """
    if type(dataset) is TensorDataset:
        return lambda indices: _rows(dataset.tensors, indices)
    if type(dataset) is Subset and (inner := reader(dataset.dataset)):
        return lambda indices: inner([dataset.indices[index] for index in indices])
    return None


def _rows(tensors: Sequence[torch.Tensor], indices: list[int]) -> Batch | None:
    if not all(type(tensor) is torch.Tensor and tensor.is_cpu and tensor.layout is torch.strided for tensor in tensors):
        return None
    numbers = torch.from_numpy(np.array(indices, np.int64))
    return Batch(tensor[numbers] for tensor in tensors)  # a script's Subset may count from the end
