"""A script is told of a dataset that gives another sample when the same index is read again."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import mse_loss
from torch.utils.data import Dataset

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


@pytest.mark.parametrize(
    ("kind", "workers"), [(Kept, 0), (InSequence, 0), (InSequence, 1), (Negatives, 0), (InPlace, 0), (Once, 0)]
)
def test_a_dataset_that_reads_on(kind: type[Kept], workers: int, capfd: pytest.CaptureFixture[str]) -> None:
    model = fresh(mlp)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    ours = session(model, optimizer)
    loader = ours.loader(kind(), global_batch_size=BATCH, num_workers=workers)
    for _ in ours.epochs(2):
        for x, y, _ in loader:
            optimizer.zero_grad()
            loss = mse_loss(model(x), y)
            loss.backward()
            ours.step(loss)
    told = [line for line in capfd.readouterr().err.splitlines() if "gives another sample" in line]
    assert len(told) == (kind is not Kept)
    assert all("test_read_again.py, line " in line for line in told)
