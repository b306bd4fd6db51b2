"""The options of ``DataLoader`` one by one, datasets, batches of other kinds, and streams."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset, default_collate

from pilot.train.data.order import Drawn
from tests.equivalence.recipe import Recipe
from tests.equivalence.rows import BATCH, SAMPLES, SEED, Row, Topic


class Named(Dataset[Any]):
    """Samples that are dicts, with text and nested ones."""

    def __init__(self, data: torch.Tensor) -> None:
        self.data = data

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> Any:
        return {"x": self.data[index], "name": f"sample {index}", "more": {"pair": (index, [1.0, 2.0])}}


class AtOnce(Named):
    """Gives many samples at once."""

    def __getitems__(self, indices: list[int]) -> Any:
        return [(self.data[index],) for index in indices]

    def __getitem__(self, index: int) -> Any:
        return (self.data[index],)


class Augmented(Named):
    """Draws from all three generators."""

    def __getitem__(self, index: int) -> Any:
        noise = torch.rand(3, dtype=torch.float64) + np.random.rand() + random.random()
        return (self.data[index] + 0.1 * noise,)


class Growing(Named):
    """Its samples depend on the epoch that the script sets."""

    epoch = 0

    def __getitem__(self, index: int) -> Any:
        return (self.data[index] * (1 + self.epoch),)


class TwoParts(Named):
    """A source that can start anywhere, with a different order in each epoch."""

    epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def from_cursor(self, start: int) -> Iterator[Any]:
        return ((self.data[(i + 5 * self.epoch) % SAMPLES],) for i in range(start, SAMPLES))

    def __iter__(self) -> Iterator[Any]:
        return self.from_cursor(0)

    def __getitem__(self, index: int) -> Any:
        return (self.data[index],)


def a_part(data: torch.Tensor) -> Any:
    more = torch.cat([data, data + 1])
    return Subset(TensorDataset(more), list(range(1, 2 * SAMPLES, 2)))


def doubled(samples: list[Any]) -> Any:
    """A ``collate_fn``."""
    return [2 * default_collate(samples)[0]]


def seeds(_worker: int) -> None:
    torch.set_num_threads(1)


def set_epoch(dataset: Any, epoch: int) -> None:
    dataset.epoch = epoch


def stream(session: Any, dataset: Any, **options: Any) -> Any:
    return session.stream(dataset, **options)


def of_a_loader(**its: Any) -> Callable[..., Any]:
    """Gives the session a ``DataLoader`` with these options."""
    return lambda session, dataset, **options: session.loader(DataLoader(dataset, batch_size=3, **its), **options)


def drawn(epoch: int) -> list[int]:
    return Drawn(SEED, SAMPLES, 30).indices(epoch, 0, 30).tolist()


def in_order(_epoch: int) -> range:
    return range(SAMPLES)


def rotated(epoch: int) -> list[int]:
    return [(i + 5 * epoch) % SAMPLES for i in range(SAMPLES)]


WORKERS = {"num_workers": 2}
OPTIONS: dict[str, dict[str, Any]] = {
    "num_workers": WORKERS,
    "persistent_workers": {**WORKERS, "persistent_workers": True},
    "prefetch_factor": {**WORKERS, "prefetch_factor": 3},
    "worker_init_fn": {**WORKERS, "worker_init_fn": seeds},
    "timeout": {**WORKERS, "timeout": 20},
    "multiprocessing_context": {**WORKERS, "multiprocessing_context": "fork"},
}
PER_NODE: dict[str, Any] = {
    "batch": BATCH // 2,
    "per_node": True,
    "different": "the global batch grows with the nodes",
}
ROWS: list[Row] = [
    Recipe(name="shuffle=False", loader={"shuffle": False}, order=in_order),
    Recipe(name="replacement=True", loader={"replacement": True}, order=drawn),
    Recipe(
        name="replacement=True, num_samples=30", loader={"replacement": True, "num_samples": 30}, order=drawn, used=30
    ),
    Recipe(name="a DataLoader, shuffled", feed=of_a_loader(shuffle=True)),
    Recipe(
        name="a DataLoader in order, with a collate_fn",
        feed=of_a_loader(collate_fn=doubled),
        collate=doubled,
        order=in_order,
    ),
    Recipe(name="drop_last", loader={"drop_last": True}, used=20),
    Recipe(name="a global batch smaller than the group", batch=1),
    Recipe(name="collate_fn", loader={"collate_fn": doubled}, collate=doubled),
    Recipe(name="pin_memory", loader={"pin_memory": True}),
    *[Recipe(name=name, loader=options, real=True) for name, options in OPTIONS.items()],
    Recipe(name="a dataset that the script changes between epochs", dataset=Growing, each_epoch=set_epoch),
    Recipe(
        name="a dataset that the script changes between epochs, num_workers",
        dataset=Growing,
        each_epoch=set_epoch,
        loader=WORKERS,
        real=True,
    ),
    Recipe(name="a dataset with __getitems__", dataset=AtOnce),
    Recipe(name="Subset", dataset=a_part),
    Recipe(name="samples of text, lists and dicts", dataset=Named),
    Recipe(name="random augmentation", dataset=Augmented, real=True),
    Recipe(name="random augmentation, num_workers", dataset=Augmented, loader=WORKERS, real=True, core=True),
    Recipe(name="batch_size, lr_rule='none'", options={"lr_rule": "none"}, **PER_NODE),
    Recipe(name="batch_size, lr_rule='linear'", options={"lr_rule": "linear"}, factor=float, **PER_NODE),
    Recipe(name="batch_size, lr_rule='sqrt'", options={"lr_rule": "sqrt"}, factor=math.sqrt, **PER_NODE),
    Recipe(name="a stream", feed=stream, order=in_order),
    Recipe(name="a stream, micro-batches", feed=stream, order=in_order, micro=1),
    Recipe(name="a stream with from_cursor and set_epoch", feed=stream, dataset=TwoParts, order=rotated),
]
TOPIC = Topic(50, "Data", ROWS)
