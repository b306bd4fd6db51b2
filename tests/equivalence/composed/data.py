"""Datasets and streams, and how they are divided into batches, by choice."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, default_collate

from tests.equivalence.loops import DATA, SAMPLES

BATCH = 4


NOISE: dict[str, Callable[[], Any]] = {
    "none": lambda: 0.0,
    "torch": lambda: torch.randn(3, dtype=torch.float64) * 0.1,
    "numpy": lambda: np.random.standard_normal() * 0.1,
    "python": lambda: random.gauss(0, 0.1),
    "all": lambda: torch.rand(()) * 0.1 + np.random.rand() * 0.1 + random.random() * 0.1,
}


class Samples(Dataset[Any]):
    """A map-style dataset that adds noise."""

    strength = 1.0
    """Which a script may change between epochs."""

    def __init__(self, noise: Callable[[], Any]) -> None:
        self._noise = noise

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> Any:
        x, y = DATA[index]
        return self.strength * x + self._noise(), y


class Pairs(Samples):
    """With a second, unlabelled one."""

    def __getitem__(self, index: int) -> Any:
        return (*super().__getitem__(index), DATA[(7 * index) % SAMPLES][0] + self._noise())


class Sequence(IterableDataset[Any]):
    """A stream, in another order in each epoch."""

    epoch = 0

    def __init__(self, noise: Callable[[], Any]) -> None:
        self.samples = Samples(noise)

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def order(self, epoch: int) -> list[int]:
        return [(i + 5 * epoch) % SAMPLES for i in range(SAMPLES)]

    def __iter__(self) -> Iterator[Any]:
        return (self.samples[i] for i in self.order(self.epoch))


class FromCursor(Sequence):
    def from_cursor(self, cursor: int) -> Iterator[Any]:
        return (self.samples[i] for i in self.order(self.epoch)[cursor:])


class Shuffled(Sequence):
    """By a generator that each reading makes."""

    def order(self, epoch: int) -> list[int]:
        return torch.randperm(SAMPLES, generator=torch.Generator().manual_seed(epoch)).tolist()


class SameOrder(Sequence):
    def order(self, epoch: int) -> list[int]:  # noqa: ARG002  # as the others
        return [*range(SAMPLES)]


def as_dict(samples: list[Any]) -> dict[str, torch.Tensor]:
    x, y = default_collate(samples)
    return {"y": y, "x": x}


DATASETS: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "tensors": (lambda _: DATA, {}),
    "map": (Samples, {}),
    "collated": (Samples, {"collate_fn": as_dict}),
    "in order": (Samples, {"shuffle": False}),
    "drawn": (Samples, {"replacement": True, "num_samples": 18}),
    "pairs": (Pairs, {}),
    "changed": (Samples, {}),
    "stream": (Sequence, {}),
    "stream shuffled": (Shuffled, {}),
    "stream of a loader": (lambda noise: DataLoader(SameOrder(noise), batch_size=None), {}),
    "stream from cursor": (FromCursor, {"collate_fn": as_dict}),
}
BATCHES: dict[str, dict[str, Any]] = {
    "whole": {"global_batch_size": BATCH},
    "drop last": {"global_batch_size": BATCH, "drop_last": True},
    "micro 1": {"global_batch_size": 5, "micro_batch_size": 1},
    "micro 3": {"global_batch_size": 8, "micro_batch_size": 3},
    "all at once": {"global_batch_size": SAMPLES, "micro_batch_size": 4},
}
