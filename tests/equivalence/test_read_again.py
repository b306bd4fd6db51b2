"""A script is told of a dataset that gives another sample when the same index is read again, or that keeps samples as
it has augmented them at random.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import mse_loss
from torch.utils.data import Dataset, Subset

from tests.equivalence.loops import BATCH, DATA, fresh, mlp, session


class Kept(Dataset[Any]):
    """Samples with all sorts of values, by their index."""

    def __init__(self) -> None:
        self.places, self.numbers, self.last = self.endless(), torch.zeros(3), -1

    def endless(self) -> Iterator[int]:
        while True:
            yield from range(len(DATA))

    def __len__(self) -> int:
        return len(DATA)

    def __getitem__(self, index: int) -> Any:
        x, y = DATA[index]
        return x, y, {"name": str(index), "none": math.nan, "noise": [random.random(), np.random.rand(2)]}


class InSequence(Kept):
    """One after the other."""

    def __getitem__(self, _index: int) -> Any:
        return super().__getitem__(next(self.places))


class Negatives(Kept):
    """A part of each sample is taken one after the other."""

    def __getitem__(self, index: int) -> Any:
        x, y, more = super().__getitem__(index)
        return x, y, more | {"negatives": [np.array([next(self.places)])]}


class InPlace(Kept):
    """With noise that adds up in what it keeps."""

    def __getitem__(self, index: int) -> Any:
        return *DATA[index], self.numbers.add_(torch.rand(3)).clone()


class Once(Kept):
    """Not twice in a row."""

    def __getitem__(self, index: int) -> Any:
        if self.last == index:
            raise ValueError("twice")
        self.last = index
        return *DATA[index], index


def train(data: Dataset[Any], workers: int) -> None:
    model = fresh(mlp)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    ours = session(model, optimizer)
    loader = ours.loader(data, global_batch_size=BATCH, num_workers=workers)
    for _ in ours.epochs(2):
        for x, y, _ in loader:
            optimizer.zero_grad()
            loss = mse_loss(model(x), y)
            loss.backward()
            ours.step(loss)


class Augmented(Kept):
    """Random noise is added in each read."""

    def __init__(self) -> None:
        super().__init__()
        self.cache: dict[int, Any] = {}
        self.places_of: list[Any] = [None] * len(DATA)

    def sample(self, index: int) -> Any:
        return DATA[index][0] + torch.rand(3), DATA[index][1], random.random()

    def __getitem__(self, index: int) -> Any:
        return self.sample(index)


class InDict(Augmented):
    """It keeps them."""

    def __getitem__(self, index: int) -> Any:
        if index not in self.cache:
            self.cache[index] = self.sample(index)
        return self.cache[index]


class InList(Augmented):
    """It keeps them in their places."""

    def __getitem__(self, index: int) -> Any:
        if self.places_of[index] is None:
            self.places_of[index] = self.sample(index)
        return self.places_of[index]


class ByDecorator(Augmented):
    """A decorator keeps them."""

    @lru_cache  # noqa: B019  # as scripts do
    def __getitem__(self, index: int) -> Any:
        return self.sample(index)


class Peeked(InDict):
    """The script has read a sample before the loop."""

    def __init__(self) -> None:
        super().__init__()
        _ = self[0]


class Pure(Augmented):
    """It keeps what it reads, and augments it anew."""

    def __getitem__(self, index: int) -> Any:
        self.cache.setdefault(index, DATA[index])
        return self.cache[index][0] + torch.rand(3), self.cache[index][1], 0


class Lazy(Augmented):
    """It draws something once."""

    def __getitem__(self, index: int) -> Any:
        if not self.cache:
            self.cache = {"model": torch.nn.Linear(3, 3), "bias": torch.rand(3)}
        return *DATA[index], index


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (InDict, "dataset.cache"),
        (InList, "dataset.places_of"),
        (ByDecorator, "dataset.__getitem__"),
        (Peeked, "dataset.cache"),
        (Augmented, ""),
        (Pure, ""),
        (Lazy, ""),
    ],
)
@pytest.mark.parametrize("part", [False, True], ids=["whole", "part"])
def test_a_dataset_that_keeps_augmented_samples(
    kind: type[Kept], name: str, part: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    train(Subset(kind(), range(len(DATA))) if part else kind(), workers=0)
    told = [line for line in capfd.readouterr().err.splitlines() if "when it first reads" in line]
    assert [line.partition("drawn (")[2].partition(")")[0] for line in told] == [name] * bool(name)


@pytest.mark.parametrize(
    ("kind", "workers"), [(Kept, 0), (InSequence, 0), (InSequence, 1), (Negatives, 0), (InPlace, 0), (Once, 0)]
)
def test_a_dataset_that_reads_on(kind: type[Kept], workers: int, capfd: pytest.CaptureFixture[str]) -> None:
    train(kind(), workers)
    told = [line for line in capfd.readouterr().err.splitlines() if "gives another sample" in line]
    assert len(told) == (kind is not Kept)
    assert all("test_read_again.py, line " in line for line in told)
