"""What a dataset keeps by sample. Whole numbers, a subset's indices or labels, are part of the run's identity: a split
that a generator of the script's own draws without a seed (``numpy.random.default_rng()``) is another one on each node,
and after each resume. Other numbers, which may be rounded otherwise on another node, and texts, such as the names of
files in the order in which the node's file system has them, are only compared between the ranks.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePath
from typing import Any

import numpy as np
import torch
import xxhash
from torch.utils.data import Dataset, Subset, TensorDataset

from pilot.checkpoint import checksums

_READ = 1 << 20
_TEXTS_READ = 10_000
"""Of more numbers, or texts, only so many are read."""


def checksum(dataset: Dataset[Any]) -> str:
    """Of all that the dataset, and those of which it is a subset, keep so; "" if they keep none."""
    found = [numbers for one in _chain(dataset) for value in _kept(one) for numbers in _whole(value, one)]
    return xxhash.xxh3_64_hexdigest(b"".join(numbers.tobytes() for numbers in found)) if found else ""


def others(dataset: Any) -> dict[str, int]:
    """Checksums, from 1 on, of the other numbers and the texts, by what has them. Of paths the last part counts: each
    node may have the files in a folder of its own.
    """
    found = {}
    for number, one in enumerate(_chain(dataset) if isinstance(dataset, Dataset) else ()):
        held = enumerate(one.tensors) if isinstance(one, TensorDataset) else _attributes(one)
        for name, value in held:
            if (content := _content(value, one)) is not None:
                at = f"tensors[{name}]" if isinstance(one, TensorDataset) else name
                found[".dataset".join(["dataset", *[""] * number]) + f".{at}"] = 1 + content
    return found


def _content(value: Any, dataset: Any) -> int | None:
    """None: it is nothing that the dataset has by sample, or whole numbers."""
    is_array = isinstance(value, np.ndarray) and not isinstance(value, np.memmap) and value.ndim > 0
    is_tensor = type(value) is torch.Tensor and value.layout is torch.strided and value.device.type == "cpu"
    of_texts = isinstance(value, list | tuple) and bool(value) and isinstance(value[0], str | PurePath)
    of_numbers = (is_array and value.dtype.kind in "fc") or (is_tensor and value.dim() > 0 and not _is_whole(value))
    if not (of_texts or of_numbers) or len(value) != len(dataset):
        return None
    size = value.size if is_array else value.numel() if is_tensor else len(value)
    read = value[:: max(1, -(-size // (_TEXTS_READ if of_texts else _READ)))]
    return checksums.of_value([PurePath(one).name for one in read] if of_texts else read)


def _is_whole(value: torch.Tensor) -> bool:
    return not (value.is_floating_point() or value.is_complex())


def _chain(dataset: Any) -> Iterator[Any]:
    yield dataset
    while isinstance(dataset, Subset):
        dataset = dataset.dataset
        yield dataset


def _kept(dataset: Any) -> list[Any]:
    if isinstance(dataset, Subset):
        return [dataset.indices]
    return [*dataset.tensors] if isinstance(dataset, TensorDataset) else [value for _, value in _attributes(dataset)]


def _attributes(dataset: Any) -> list[tuple[str, Any]]:
    """Not those of torch's own datasets, which hold others."""
    is_of_torch = type(dataset).__module__.partition(".")[0] == "torch"
    return [] if is_of_torch else list(getattr(dataset, "__dict__", {}).items())


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
        is_row = plain and value.ndim == 1 and _is_whole(value)
    if is_row and len(value) == len(dataset):
        read = value[:: -(-len(value) // _READ)]
        numbers = read.numpy() if isinstance(read, torch.Tensor) else np.asarray(read)
        if numbers.dtype.kind in "iub":
            yield numbers.astype(np.int64)
