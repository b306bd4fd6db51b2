"""What a script switches in some epoch: its loss, a transform of its dataset, a value of its other modules. Nodes that
join later, and runs that resume, do not come past that place of its code.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest
import torch
from torch.nn.functional import l1_loss, mse_loss

from tests.equivalence.loops import BATCH, DATA, EPOCHS, fresh, mlp, session

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


class Scale:
    """A transform that is an object."""

    def __init__(self, factor: float) -> None:
        self.factor = factor

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.factor


class Data(torch.utils.data.Dataset[Any]):
    """With augmentations, and a number that it sets for each sample."""

    def __init__(self) -> None:
        self.mosaic, self.epoch, self.rate, self.transform = True, 0, 1.0, torch.sin
        self.then: Any = None
        self.phase, self.scaled = {"scale": 1.0}, Scale(1.0)
        self.read: dict[int, float] = {}
        self.last: Any = None

    def __len__(self) -> int:
        return len(DATA)

    def __getitem__(self, index: int) -> Any:
        x, y = DATA[index]
        self.rate = 1.0 + index
        self.keep(index)
        x = self.scaled(self.transform(x)) * self.phase["scale"]
        return (x if self.then is None else self.then(x)) * (2.0 if self.mosaic else self.rate), y

    def keep(self, index: int) -> None:
        """As a cache."""
        self.read[index], self.last = 1.0 + index, object()


def trains(begins: Callable[[Data], object], *, loss_later: Loss = mse_loss) -> None:
    """A script. ``begins``: what it does when its second epoch begins."""
    model, data, loss_fn = fresh(mlp), Data(), mse_loss
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    ours = session(model, optimizer)
    loader = ours.loader(torch.utils.data.Subset(data, range(len(data))), global_batch_size=BATCH)
    for epoch in ours.epochs(EPOCHS + 1):
        data.epoch = epoch
        if epoch == 1:
            begins(data)
            loss_fn = loss_later
        for x, y in loader:
            optimizer.zero_grad()
            loss = loss_fn(model(x), y)
            loss.backward()
            ours.step(loss)


def names(capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Of the values that are told of."""
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("pilot: ")]
    return [name for line in lines for name in line.partition("change in its loop (")[2].partition(")")[0].split(", ")]


def test_a_loss(capsys: pytest.CaptureFixture[str]) -> None:
    trains(lambda _data: None, loss_later=l1_loss)
    assert names(capsys) == ["loss_fn"]


def no_mosaic(data: Data) -> None:
    data.mosaic = False


def another_transform(data: Data) -> None:
    data.transform = torch.cos


def one_more_transform(data: Data) -> None:
    data.then = Scale(2.0)


def another_object(data: Data) -> None:
    data.scaled = Scale(1.0)


def another_factor(data: Data) -> None:
    data.scaled.factor = 2.0


def another_phase(data: Data) -> None:
    data.phase["scale"] = 2.0


@pytest.mark.parametrize(
    ("begins", "name"),
    [
        (no_mosaic, "dataset.mosaic"),
        (another_transform, "dataset.transform"),
        (one_more_transform, "dataset.then"),
        (another_object, "dataset.scaled"),
        (another_factor, "dataset.scaled.factor"),
        (another_phase, "dataset.phase[scale]"),
    ],
)
def test_what_a_dataset_has(begins: Callable[[Data], None], name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """And not its number of the epoch, which each epoch sets, nor what it sets for each sample."""
    trains(begins)
    assert names(capsys) == [name]


def test_what_one_iteration_sets(capsys: pytest.CaptureFixture[str]) -> None:
    """Of the dataset, and variables that there were not before."""
    model, data = fresh(mlp), Data()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    ours = session(model, optimizer)
    loader = ours.loader(data, global_batch_size=BATCH)
    for number in ours.iterations(20):
        if number == 8:
            data.mosaic = False
        if number % 4 == 0:
            noise = torch.randn(3, dtype=torch.float64)
        x, y = loader.next()
        optimizer.zero_grad()
        loss = mse_loss(model(x + noise), y)
        loss.backward()
        ours.step(loss)
    assert names(capsys) == ["noise", "dataset.mosaic"]


def test_nothing_that_each_epoch_from_one_on_sets(capsys: pytest.CaptureFixture[str]) -> None:
    model, data = fresh(mlp), Data()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    ours = session(model, optimizer)
    loader = ours.loader(data, global_batch_size=BATCH)
    for epoch in ours.epochs(EPOCHS + 1):
        data.epoch = epoch
        if epoch >= 1:
            data.mosaic, data.transform = False, torch.cos
        for x, y in loader:
            optimizer.zero_grad()
            loss = mse_loss(model(x), y)
            loss.backward()
            ours.step(loss)
    assert names(capsys) == []


@pytest.fixture
def settings() -> Iterator[ModuleType]:
    """A module of the script's."""
    made = ModuleType("settings_of_a_script")
    made.__file__ = f"{__file__}.settings.py"
    exec("count = 0\nrate = 1.0\nfixed = [1]\ndef counted():\n    global count\n    count += 1", vars(made))
    sys.modules[made.__name__] = made
    yield made
    del sys.modules[made.__name__]


def test_values_of_other_modules(settings: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    def begins(_data: Data) -> None:
        settings.rate /= 2
        settings.counted()

    trains(begins)
    assert names(capsys) == ["settings_of_a_script.count", "settings_of_a_script.rate"]
