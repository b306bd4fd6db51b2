"""Reads and collates samples. Random augmentation depends only on (seed, epoch, position), not on which process loads a
sample, or when. Batches are like those of torch's ``default_collate``, but made faster: for small samples collating
takes as long as reading.

Generators are seeded for each sample. That takes microseconds, so it is done only for generators that the dataset uses.
The others are watched, and if one is used, the micro-batch is loaded again; at first a loader tries a single sample.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset, default_collate, get_worker_info

from pilot.core.errors import UserError
from pilot.train.data import rng
from pilot.train.data.order import Indices
from pilot.train.data.sampler import mix


class MicroBatch(NamedTuple):
    """The samples of a micro-batch: ``indices`` in the dataset, at consecutive positions of an epoch from ``start``."""

    seed: int
    epoch: int
    start: int
    indices: Indices


class Seeded(Dataset[Any]):
    """A dataset for torch's ``DataLoader`` that loads micro-batches with seeded generators.

    Parameters
    ----------
    dataset : the script's dataset
    collated : whether the script has a ``collate_fn``, which may be random: it is seeded by the first sample
    """

    def __init__(self, dataset: Any, *, collated: bool) -> None:
        self.dataset = dataset
        self._collated = collated
        self._at_once: Callable[[list[int]], Any] | None = getattr(dataset, "__getitems__", None)
        self._batch = None if collated else reader(dataset)
        self._unused = list(rng.GENERATORS)
        self._used: list[rng.Generator] = []
        self._fresh = True

    def __reduce__(self) -> tuple[Callable[..., Seeded], tuple[object, ...]]:
        return partial(Seeded, collated=self._collated), (self.dataset,)

    def __getitems__(self, micro_batch: MicroBatch) -> Any:
        if self._batch and (batch := self._batch(micro_batch.indices)) is not None:
            return batch  # nothing is random in it
        if self._fresh and self._at_once is None:  # so that at most one sample is loaded twice
            first, rest = micro_batch.indices[:1], micro_batch.indices[1:]
            samples = self._load(micro_batch._replace(indices=first))
            samples += self._load(micro_batch._replace(start=micro_batch.start + 1, indices=rest))
        else:
            samples = self._load(micro_batch)
        self._fresh = False
        if self._collated:
            rng.seed_all(mix(micro_batch.seed, micro_batch.epoch, micro_batch.start))
        return samples

    def _load(self, micro_batch: MicroBatch) -> Any:
        while True:
            for generator in self._unused:
                generator.watch()
            samples, error = self._attempt(micro_batch)
            used = [generator for generator in self._unused if generator.was_used()]
            if not used:
                if error is not None:
                    raise error
                return samples
            self._used += used
            self._unused = [generator for generator in self._unused if generator not in used]

    def _attempt(self, micro_batch: MicroBatch) -> tuple[Any, Exception | None]:
        """Return the samples or the error, which may be due to generators that were not seeded."""
        try:
            return (self._one_by_one(micro_batch) if self._used else self._read(micro_batch.indices.tolist())), None
        except Exception as error:
            return None, error

    def _one_by_one(self, micro_batch: MicroBatch) -> list[Any]:
        load = self._load_one if self._at_once is not None else self.dataset.__getitem__
        indices: Iterable[int] = micro_batch.indices.tolist()
        for generator in self._used:
            indices = _each(generator.seed, seeds(micro_batch, generator.lane), indices)
        return [load(index) for index in indices]

    def _load_one(self, index: int) -> Any:
        """Load one sample by ``__getitems__``."""
        one = self._read([index])
        if not isinstance(one, list | tuple) or len(one) != 1:
            raise UserError(
                "the dataset's __getitems__ uses random numbers but does not return a list of samples, so these cannot"
                " be seeded one by one; return a list with one sample per index"
            )
        return one[0]

    def _read(self, indices: list[int]) -> Any:
        if self._at_once is not None:
            return self._at_once(indices)
        dataset = self.dataset
        return [dataset[index] for index in indices]


def seeds(micro_batch: MicroBatch, lane: int) -> list[int]:
    """Return a seed per sample of ``micro_batch`` for the generator with this lane. Seeds have the 32 bits that torch
    and numpy use, and are all different in an epoch (of up to 4e9 samples).
    """
    key = mix(micro_batch.seed, micro_batch.epoch, lane)
    numbers = np.arange(len(micro_batch.indices), dtype=np.uint32)
    for add in (micro_batch.start + key, key >> 32):
        numbers += np.uint32(add & 0xFFFFFFFF)
        _scatter(numbers)
    seeds: list[int] = numbers.tolist()
    return seeds


def _scatter(numbers: NDArray[np.uint32]) -> None:
    """Hash each number in place, by a bijection (Wellons, "lowbias32", 2018)."""
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
        numbers ^= numbers >> shift
        numbers *= np.uint32(factor)
    numbers ^= numbers >> 16


def _each(seed: Callable[[int], object], numbers: list[int], items: Iterable[int]) -> Iterator[int]:
    """Yield each of ``items``, after calling ``seed`` with its number."""
    for number, item in zip(numbers, items, strict=True):
        seed(number)
        yield item


class MicroBatchLoader(DataLoader[Any]):
    """A ``DataLoader`` of a :class:`Seeded`, without torch's overhead per batch if there are no workers."""

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]  # torch returns a class of its own
        if self.num_workers or self.pin_memory:
            yield from super().__iter__()
        else:
            dataset: Any = self.dataset
            for micro_batch in self.batch_sampler or ():
                yield self.collate_fn(dataset.__getitems__(micro_batch))


class WorkerInit:
    """A ``worker_init_fn`` that sets ``get_worker_info().dataset`` to the script's dataset, and calls the script's."""

    def __init__(self, worker_init_fn: Callable[[int], object] | None) -> None:
        self._init = worker_init_fn

    def __call__(self, worker: int) -> None:
        info: Any = get_worker_info()
        object.__setattr__(info, "dataset", info.dataset.dataset)  # read-only for others
        if self._init is not None:
            self._init(worker)


class Batch(list[Any]):
    """A batch that was read at once, not sample by sample."""


def collate(samples: Any) -> Any:
    """Collate like ``default_collate``, but handle all tuples of a batch together."""
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
    """Return a function that reads a batch of ``dataset`` without creating its samples one by one, or returns None if
    its tensors do not allow that; None if ``dataset`` cannot be read like that.
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
