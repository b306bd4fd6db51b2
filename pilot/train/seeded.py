"""A dataset whose random augmentation depends on (seed, epoch, sample) alone, not on who loads it or when.

Each sample comes as if all generators had been seeded for it. To seed them takes longer than to read a small sample, so
only those that the dataset uses are: a generator that is as it was before a piece had no part in its samples. Where one
was used that had not been seeded, the piece is loaded again with it seeded before each sample, as is every later one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from torch.utils.data import Dataset, get_worker_info

from pilot.core.errors import UserError
from pilot.train import rng
from pilot.train.collate import reader
from pilot.train.sampler import mix, mix_each


class Piece(NamedTuple):
    """What is loaded at once.

    ``numbers``: what the samples' seeds are made of, besides ``seed`` and ``epoch``.
    """

    seed: int
    epoch: int
    indices: list[int]
    numbers: Sequence[int]

    def seed_of(self, place: int) -> int:
        """That of the sample at ``place``."""
        return mix(self.seed, self.epoch, self.numbers[place])

    def seeds(self) -> list[int]:
        """Those of all samples."""
        return mix_each((self.seed, self.epoch), self.numbers)

    def part(self, start: int, stop: int | None) -> Piece:
        """The samples at [start, stop)."""
        return self._replace(indices=self.indices[start:stop], numbers=self.numbers[start:stop])


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
        self._used: list[rng.Generator] = []
        self._fresh = True

    def __reduce__(self) -> tuple[Callable[..., Seeded], tuple[object, ...]]:
        return _seeded, (self.dataset, self._collated)

    def __getitems__(self, piece: Piece) -> Any:
        if self._batch and (batch := self._batch(piece.indices)) is not None:
            return batch  # nothing is random in it
        if self._fresh and self._at_once is None:  # so that one sample is loaded twice, not a whole piece
            samples = [*self._load(piece.part(0, 1)), *self._load(piece.part(1, None))]
        else:
            samples = self._load(piece)
        self._fresh = False
        if self._collated:
            rng.seed_all(piece.seed_of(0))
        return samples

    def _load(self, piece: Piece) -> Any:
        while True:
            unseeded = [generator for generator in rng.GENERATORS if generator not in self._used]
            before = [generator.snapshot() for generator in unseeded]
            samples, error = self._attempt(piece)
            used = [one for one, was in zip(unseeded, before, strict=True) if one.snapshot() != was]
            if not used:
                if error is not None:
                    raise error
                return samples
            self._used += used

    def _attempt(self, piece: Piece) -> tuple[Any, Exception | None]:
        """The samples, or why there are none; that may be for want of the right seed."""
        try:
            return (self._one_by_one(piece) if self._used else self._read(piece.indices)), None
        except Exception as error:
            return None, error

    def _one_by_one(self, piece: Piece) -> list[Any]:
        setters = [generator.seed for generator in self._used]
        load = self._load_one if self._at_once is not None else self.dataset.__getitem__
        samples: list[Any] = []
        for index, seed in zip(piece.indices, piece.seeds(), strict=True):
            for setter in setters:
                setter(seed)
            samples.append(load(index))
        return samples

    def _load_one(self, index: int) -> Any:
        """By ``__getitems__``."""
        one = self._read([index])
        if not isinstance(one, list | tuple) or len(one) != 1:
            raise UserError(
                "the dataset's __getitems__ uses random numbers but does not return a list of samples, so these"
                " cannot be seeded"
                " one by one; return a list with one sample per index"
            )
        return one[0]

    def _read(self, indices: list[int]) -> Any:
        if self._at_once is not None:
            return self._at_once(indices)
        dataset = self.dataset
        return [dataset[index] for index in indices]


def _seeded(dataset: Any, collated: bool) -> Seeded:
    return Seeded(dataset, collated=collated)


class OwnDataset:
    """How a worker begins: ``get_worker_info().dataset`` is the script's own, then its ``worker_init_fn`` runs."""

    def __init__(self, worker_init_fn: Callable[[int], object] | None) -> None:
        self._init = worker_init_fn

    def __call__(self, worker: int) -> None:
        info: Any = get_worker_info()
        object.__setattr__(info, "dataset", info.dataset.dataset)  # read-only for others
        if self._init is not None:
            self._init(worker)
