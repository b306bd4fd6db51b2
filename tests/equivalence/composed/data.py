"""Datasets and streams, and how they are divided into batches, by choice."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import default_collate

from tests.equivalence.loops import DATA, SAMPLES

BATCH = 4


NOISE: dict[str, Callable[[], Any]] = {
    "none": lambda: 0.0,
    "torch": lambda: torch.randn(3, dtype=torch.float64) * 0.1,
    "numpy": lambda: np.random.standard_normal() * 0.1,
    "python": lambda: random.gauss(0, 0.1),
    "all": lambda: torch.rand(()) * 0.1 + np.random.rand() * 0.1 + random.random() * 0.1,
}


class Samples:
    """A map-style dataset that adds noise."""

    def __init__(self, noise: Callable[[], Any]) -> None:
        self._noise = noise

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> Any:
        x, y = DATA[index]
        return x + self._noise(), y


class AtOnce(Samples):
    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [self[index] for index in indices]


class Sequence(Samples):
    """A stream, in another order in each epoch."""

    epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[Any]:
        return (self[(i + 5 * self.epoch) % SAMPLES] for i in range(SAMPLES))


class FromCursor(Sequence):
    def from_cursor(self, cursor: int) -> Iterator[Any]:
        return (self[(i + 5 * self.epoch) % SAMPLES] for i in range(cursor, SAMPLES))


def as_dict(samples: list[Any]) -> dict[str, torch.Tensor]:
    x, y = default_collate(samples)
    return {"y": y, "x": x}


DATASETS: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "tensors": (lambda _: DATA, {}),
    "map": (Samples, {}),
    "at once": (AtOnce, {}),
    "collated": (Samples, {"collate_fn": as_dict}),
    "in order": (Samples, {"shuffle": False}),
    "drawn": (Samples, {"replacement": True, "num_samples": 18}),
    "stream": (Sequence, {}),
    "stream from cursor": (FromCursor, {"collate_fn": as_dict}),
}
BATCHES: dict[str, dict[str, Any]] = {
    "whole": {"global_batch_size": BATCH},
    "drop last": {"global_batch_size": BATCH, "drop_last": True},
    "micro 1": {"global_batch_size": 5, "micro_batch_size": 1},
    "micro 3": {"global_batch_size": 8, "micro_batch_size": 3},
    "by hand": {"global_batch_size": 3, "accumulate": 2, "drop_last": True},
    "of one": {"global_batch_size": 1, "accumulate": 3, "drop_last": True},
}
