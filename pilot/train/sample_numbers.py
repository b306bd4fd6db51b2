"""Whole numbers that a dataset keeps by sample: a subset's indices, labels. They are part of the run's identity: a
split that a generator of the script's own draws without a seed (``numpy.random.default_rng()``) is another one on each
node, and after each resume.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
import xxhash
from torch.utils.data import Dataset, Subset, TensorDataset

from pilot.train.untracked import inner

_READ = 1 << 20
"""Of more numbers, only so many are read."""


def checksum(dataset: Dataset[Any]) -> str:
    """Of all that the dataset, and those of which it is a subset, keep so; "" if they keep none."""
    found = [numbers for one in _chain(dataset) for value in _kept(one) for numbers in _whole(value, one)]
    return xxhash.xxh3_64_hexdigest(b"".join(numbers.tobytes() for numbers in found)) if found else ""


def _chain(dataset: Any) -> Iterator[Any]:
    yield dataset
    while isinstance(dataset, Subset):
        dataset = dataset.dataset
        yield dataset


def _kept(dataset: Any) -> list[Any]:
    if isinstance(dataset, Subset):
        return [dataset.indices]
    return [*dataset.tensors] if isinstance(dataset, TensorDataset) else [value for _, value in inner(dataset)]


def _whole(value: Any, dataset: Any) -> Iterator[np.ndarray[Any, Any]]:
    """The value, if it is a row of whole numbers with as many as the dataset has samples. Not from a memory map, which
    may be large and far.
    """
    if isinstance(value, list | range):
        is_row = bool(value) and isinstance(value[0], int | np.integer)
    elif isinstance(value, np.ndarray):
        is_row = value.ndim == 1 and value.dtype.kind in "iub" and not isinstance(value, np.memmap)
    else:
        plain = type(value) is torch.Tensor and value.layout is torch.strided and value.device.type == "cpu"
        is_row = plain and value.ndim == 1 and not (value.is_floating_point() or value.is_complex())
    if is_row and len(value) == len(dataset):
        read = value[:: -(-len(value) // _READ)]
        numbers = read.numpy() if isinstance(read, torch.Tensor) else np.asarray(read)
        if numbers.dtype.kind in "iub":
            yield numbers.astype(np.int64)
