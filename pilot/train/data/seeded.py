"""How samples are read and collated: a dataset whose random augmentation depends only on (seed, epoch, position in it),
not on which process loads it or when; and batches like those of torch's ``default_collate``, but faster: for small
samples collating takes as long as reading.

Generators are seeded for each sample. That takes microseconds, so only those that the dataset uses are: the others
are watched, and if one is used for a piece, the piece is loaded again; to find out, a loader first loads a single
sample.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset, default_collate, get_worker_info

from pilot.core.errors import UserError
from pilot.train.data import rng
from pilot.train.data.order import Indices
from pilot.train.data.sampler import mix


class Piece(NamedTuple):
    """What is loaded at once: the samples ``indices``, which are at the positions from ``start`` on of an epoch."""

    seed: int
    epoch: int
    start: int
    indices: Indices

    def first(self) -> Piece:
        """Its first sample."""
        return self._replace(indices=self.indices[:1])

    def rest(self) -> Piece:
        """The others."""
        return self._replace(start=self.start + 1, indices=self.indices[1:])


class Seeded(Dataset[Any]):
    """Loads pieces, for torch's ``DataLoader``.

    Parameters
    ----------
    dataset : the script's
    collated : whether the script has a ``collate_fn``, which may be random: it is seeded by the piece's first sample
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
        return _seeded, (self.dataset, self._collated)

    def __getitems__(self, piece: Piece) -> Any:
        if self._batch and (batch := self._batch(piece.indices)) is not None:
            return batch  # nothing is random in it
        if self._fresh and self._at_once is None:  # so that only one sample is loaded twice, not a whole piece
            samples = [*self._load(piece.first()), *self._load(piece.rest())]
        else:
            samples = self._load(piece)
        self._fresh = False
        if self._collated:
            rng.seed_all(mix(piece.seed, piece.epoch, piece.start))
        return samples

    def _load(self, piece: Piece) -> Any:
        while True:
            for generator in self._unused:
                generator.watch()
            samples, error = self._attempt(piece)
            used = [generator for generator in self._unused if generator.was_used()]
            if not used:
                if error is not None:
                    raise error
                return samples
            self._used += used
            self._unused = [generator for generator in self._unused if generator not in used]

    def _attempt(self, piece: Piece) -> tuple[Any, Exception | None]:
        """The samples, or the error, which may be due to wrong random numbers."""
        try:
            return (self._one_by_one(piece) if self._used else self._read(piece.indices.tolist())), None
        except Exception as error:
            return None, error

    def _one_by_one(self, piece: Piece) -> list[Any]:
        load = self._load_one if self._at_once is not None else self.dataset.__getitem__
        indices: Iterable[int] = piece.indices.tolist()
        for generator in self._used:
            indices = _each(generator.seed, seeds(piece, generator.lane), indices)
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


def seeds(piece: Piece, lane: int) -> list[int]:
    """Of the samples of ``piece``, for a generator: no two of an epoch have the same one of the 32 bits that torch and
    numpy use of a seed (up to 4e9 samples).
    """
    key = mix(piece.seed, piece.epoch, lane)
    numbers = np.arange(len(piece.indices), dtype=np.uint32)
    for add in (piece.start + key, key >> 32):
        numbers += np.uint32(add & 0xFFFFFFFF)
        _scatter(numbers)
    seeds: list[int] = numbers.tolist()
    return seeds


def _scatter(numbers: NDArray[np.uint32]) -> None:
    """One to one (Wellons, "lowbias32", 2018)."""
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
        numbers ^= numbers >> shift
        numbers *= np.uint32(factor)
    numbers ^= numbers >> 16


def _each(seed: Callable[[int], object], numbers: list[int], items: Iterable[int]) -> Iterator[int]:
    """Each of ``items``, after seeding a generator for it."""
    for number, item in zip(numbers, items, strict=True):
        seed(number)
        yield item


def _seeded(dataset: Any, collated: bool) -> Seeded:
    return Seeded(dataset, collated=collated)


class PieceLoader(DataLoader[Any]):
    """A ``DataLoader`` of a :class:`Seeded`, without torch's overhead per batch if there are no workers."""

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]  # torch names the class of its own one
        if self.num_workers or self.pin_memory:
            yield from super().__iter__()
        else:
            dataset: Any = self.dataset
            for piece in self.batch_sampler or ():
                yield self.collate_fn(dataset.__getitems__(piece))


class OwnDataset:
    """A worker's initialisation: make ``get_worker_info().dataset`` the script's own, then run its
    ``worker_init_fn``."""

    def __init__(self, worker_init_fn: Callable[[int], object] | None) -> None:
        self._init = worker_init_fn

    def __call__(self, worker: int) -> None:
        info: Any = get_worker_info()
        object.__setattr__(info, "dataset", info.dataset.dataset)  # read-only for others
        if self._init is not None:
            self._init(worker)


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
