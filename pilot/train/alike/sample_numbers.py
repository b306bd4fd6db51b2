"""What a dataset keeps by sample: whole numbers, a subset's indices or labels, and texts. They are part of the run's
identity: a split that a generator of the script's own draws without a seed (``numpy.random.default_rng()``) is another
one on each node, and after each resume, and so may be the order in which the node's file system lists files. (Other
numbers may be rounded otherwise on another node.)
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
"""Of more numbers, or texts, only so many are read."""


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
    """Its attributes; not those of torch's other datasets, which hold others."""
    if isinstance(dataset, Subset):
        return [dataset.indices]
    if isinstance(dataset, TensorDataset):
        return [*dataset.tensors]
    is_of_torch = type(dataset).__module__.partition(".")[0] == "torch"
    return [] if is_of_torch else [*getattr(dataset, "__dict__", {}).values()]


def _whole(value: Any, dataset: Any) -> Iterator[np.ndarray[Any, Any]]:
    """The value, if it is a row of whole numbers or texts, as many as the dataset has samples. Not from a memory map,
    which may be large and far. Of paths the last part counts: each node may have them in a folder of its own.
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
