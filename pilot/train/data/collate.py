"""The same batches as torch's ``default_collate``, but faster: for small samples collating takes as long as reading."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset, Subset, TensorDataset, default_collate, get_worker_info

from pilot.train.data.order import Indices


class Batch(list[Any]):
    """A batch that was read as a whole, not sample by sample."""


def collate(samples: Any) -> Any:
    """Collate like ``default_collate``, which handles tuples one by one; here all are handled together."""
    if isinstance(samples, Batch):
        return list(samples)
    if not (isinstance(samples, list) and samples and type(samples[0]) is tuple):
        return default_collate(samples)
    try:
        columns = list(zip(*samples, strict=True))
    except ValueError:  # they are not equally long
        return default_collate(samples)  # raises torch's error
    return [_column(column) for column in columns]


def _column(values: Any) -> Any:
    """Collate the values at one position of all samples."""
    if type(values[0]) is torch.Tensor and get_worker_info() is None:  # in a worker they must go to shared memory
        return torch.stack(values)
    if type(values[0]) is int:
        with suppress(TypeError, OverflowError):  # not all are integers, or a large one
            return torch.frombuffer(array("q", values), dtype=torch.int64)
    return default_collate(values)


def reader(dataset: Dataset[Any]) -> Callable[[Indices], Batch | None] | None:
    """A function that reads a batch of ``dataset`` without creating its samples one by one (and returns None if its
    tensors cannot be read like that); None if the dataset has only samples.
    """
    if type(dataset) is TensorDataset:
        return lambda indices: _rows(dataset.tensors, indices)
    if type(dataset) is Subset and (inner := reader(dataset.dataset)):
        return lambda indices: inner(np.array([dataset.indices[index] for index in indices.tolist()], np.int64))
    return None


def _rows(tensors: Sequence[torch.Tensor], indices: Indices) -> Batch | None:
    if not all(type(tensor) is torch.Tensor and tensor.is_cpu and tensor.layout is torch.strided for tensor in tensors):
        return None
    numbers = torch.from_numpy(indices.astype(np.int64))
    return Batch(tensor[numbers] for tensor in tensors)  # a script's Subset may count from the end
