"""What a script is told of what the source of its stream keeps from one reading to the next."""

from __future__ import annotations

import io
import itertools
import random
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

from tests.equivalence.loops import BATCH, DATA, fresh, mlp, session, train


class Shuffled(IterableDataset[Any]):
    """Its generator goes on from epoch to epoch."""

    def __init__(self) -> None:
        self.random, self.epoch, self.place, self.seen = random.Random(3), 0, 0, list[int]()

    def __iter__(self) -> Iterator[Any]:
        order = [*range(len(DATA))]
        self.random.shuffle(order)
        for index in order:
            self.seen.append(index)
            yield DATA[index]


class Endless(Shuffled):
    """Each epoch goes on where the one before ended."""

    def __iter__(self) -> Iterator[Any]:
        for _ in range(9):
            self.place = (self.place + 1) % len(DATA)
            yield DATA[self.place]


class Placed(Shuffled):
    """It counts the samples of each reading."""

    def __iter__(self) -> Iterator[Any]:
        self.place = 0
        for one in DATA:
            self.place += 1
            yield one


class Made(Shuffled):
    """Each reading has a generator of its own."""

    def __iter__(self) -> Iterator[Any]:
        self.random = random.Random(self.epoch)
        yield from super().__iter__()

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch


class Seeded(Shuffled):
    """Each reading seeds its generator."""

    def set_epoch(self, epoch: int) -> None:
        self.random.seed(epoch)


class ReadsOn(IterableDataset[Any]):
    """Each epoch reads on where the one before ended: what a function yields, of an endless list, of a file."""

    def __init__(self) -> None:
        self.endless, self.listed = self.numbers(), itertools.cycle(range(len(DATA)))
        self.file = io.FileIO(__file__)

    def numbers(self) -> Iterator[int]:
        """Of samples."""
        number = 0
        while True:
            number = (number + 1) % len(DATA)
            yield number

    def __iter__(self) -> Iterator[Any]:
        for _ in range(9):
            yield DATA[(next(self.endless) + next(self.listed) + len(self.file.readline())) % len(DATA)]


class Rewinds(ReadsOn):
    """Each epoch reads them from their beginning."""

    def __iter__(self) -> Iterator[Any]:
        self.endless, self.listed = self.numbers(), itertools.cycle(range(len(DATA)))
        self.file.seek(0)
        yield from super().__iter__()


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        (Shuffled, "random"),
        (Endless, "place"),
        (Placed, ""),
        (Made, ""),
        (Seeded, ""),
        (ReadsOn, "endless, listed, file"),
        (Rewinds, ""),
    ],
)
@pytest.mark.parametrize("by_loader", [False, True])
def test_what_a_source_keeps(
    kind: type[IterableDataset[Any]], names: str, by_loader: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    model = fresh(mlp)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    ours = session(model, optimizer)
    source = DataLoader(kind(), batch_size=None) if by_loader else kind()
    stream = ours.stream(source, global_batch_size=BATCH)
    train(ours, model, optimizer, stream)

    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("pilot: ")]
    assert [f"changes what it keeps ({names})" in line for line in lines] == [True] * bool(names)
