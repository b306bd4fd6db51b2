"""A checksum of the integers and texts that a dataset holds by sample: a subset's indices, labels, file names. It is
part of the run's identity: a split drawn without a seed (``numpy.random.default_rng()``) differs on each node and after
each resume, and so may the order in which a file system lists files. (Floats may be rounded differently.)
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePath
from typing import Any

import numpy as np
import torch
import xxhash
from torch.utils.data import Dataset, Subset, TensorDataset

_READ = 1 << 20
_TEXTS_READ = 10_000
"""The largest number of numbers, or texts, that are read of one value."""


def checksum(dataset: Dataset[Any]) -> str:
    """Return the checksum over ``dataset``, and the datasets that it is a subset of; "" if they hold no such values."""
    found = [numbers for one in _chain(dataset) for value in _values(one) for numbers in _by_sample(value, one)]
    return xxhash.xxh3_64_hexdigest(b"".join(numbers.tobytes() for numbers in found)) if found else ""


def _chain(dataset: Any) -> Iterator[Any]:
    yield dataset
    while isinstance(dataset, Subset):
        dataset = dataset.dataset
        yield dataset


def _values(dataset: Any) -> list[Any]:
    """Return the attributes of ``dataset``; none of torch's other datasets, which hold datasets."""
    if isinstance(dataset, Subset):
        return [dataset.indices]
    if isinstance(dataset, TensorDataset):
        return [*dataset.tensors]
    is_of_torch = type(dataset).__module__.partition(".")[0] == "torch"
    return [] if is_of_torch else [*getattr(dataset, "__dict__", {}).values()]


def _by_sample(value: Any, dataset: Any) -> Iterator[np.ndarray[Any, Any]]:
    """Yield ``value`` as numbers if it has an integer or a text for each sample. Memory maps, which may be large, are
    left out. Of paths only the last part counts: each node may have its own folder.
    """
    if isinstance(value, list | tuple) and value and isinstance(value[0], str | PurePath):
        if len(value) == len(dataset):
            names = "\0".join(PurePath(str(one)).name for one in value[:: -(-len(value) // _TEXTS_READ)])
            yield np.frombuffer(names.encode(errors="surrogatepass"), np.uint8)
        return
    if isinstance(value, list | range):
        is_row = bool(value) and isinstance(value[0], int | np.integer)
    elif isinstance(value, np.ndarray):
        is_row = value.ndim == 1 and value.dtype.kind in "iub" and not isinstance(value, np.memmap)
    else:
        plain = type(value) is torch.Tensor and value.layout is torch.strided and value.device.type == "cpu"
        is_row = plain and value.ndim == 1 and not (value.is_floating_point() or value.is_complex())
    if is_row and len(value) == len(dataset):
        read = value[:: max(1, -(-len(value) // _READ))]
        numbers = read.numpy() if isinstance(read, torch.Tensor) else np.asarray(read)
        if numbers.dtype.kind in "iub":
            yield numbers.astype(np.int64)
