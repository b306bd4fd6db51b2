"""Scripts that compute with something that neither the state nor all nodes have, and what they are told."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import l1_loss, mse_loss
from torch.utils.data import Dataset, TensorDataset

import pilot.train

SAMPLES = 16
X = torch.randn(SAMPLES, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
Y = X.sum(1, keepdim=True)
Session = pilot.train.Session
Script = Callable[[Any], None]
Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


class Told:
    """The lines with ``words`` that ranks have been told."""

    def __init__(self, capsys: pytest.CaptureFixture[str], words: str) -> None:
        self._capsys = capsys
        self._words = words

    def lines(self) -> list[str]:
        """Since the last call, once each."""
        said = self._capsys.readouterr().err.splitlines()
        return list(dict.fromkeys(line for line in said if self._words in line))


class Scaled(Dataset[Any]):
    """Its samples are multiplied by what an object of its own says."""

    def __init__(self) -> None:
        self.transform = {"settings": [{"by": 1.0}]}

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> Any:
        return X[index] * self.transform["settings"][0]["by"], Y[index]


def model() -> nn.Module:
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).double()


def switches_its_loss(options: Any) -> None:
    net = model()
    choose: dict[str, Loss] = {}

    def loss_of(y: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return choose.get("loss", mse_loss)(y, target)

    def at(epoch: int) -> None:
        if epoch == 1:
            choose["loss"] = l1_loss

    train(net, options, at, loss_of)


def registers_a_hook(options: Any) -> None:
    net = model()

    def at(epoch: int) -> None:
        if epoch == 1:
            net.get_parameter("0.weight").register_hook(lambda gradient: gradient / 2)

    train(net, options, at)


def replaces_a_method(options: Any) -> None:
    net: Any = model()

    def at(epoch: int) -> None:
        if epoch == 1:
            net[1].forward = torch.relu

    train(net, options, at)


def changes_its_dataset(options: Any) -> None:
    data = Scaled()

    def at(epoch: int) -> None:
        if epoch == 1:
            data.transform["settings"][0]["by"] = 2.0

    train(model(), options, at, data=data)


_FACTORS = itertools.cycle([2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0])


def drawn() -> float:
    """A number without a seed, which is surely another one than the last ones."""
    return next(_FACTORS)


def draws_a_constant(options: Any) -> None:
    factor = drawn()
    train(model(), options, loss=lambda y, target: mse_loss(y * factor, target))


def counts_its_batches(options: Any) -> None:
    counter = itertools.count(1)
    train(model(), options, loss=lambda y, target: mse_loss(y, target) / next(counter))


def train(
    net: nn.Module,
    options: dict[str, Any],
    at: Callable[[int], None] = lambda _: None,
    loss: Loss = mse_loss,
    data: Dataset[Any] | None = None,
) -> Session:
    """``at`` is called at each epoch's beginning."""
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    session = pilot.train.session(net, optimizer, seed=1, lr_rule="linear")
    loader = session.loader(TensorDataset(X, Y) if data is None else data, **options)
    for epoch in session.epochs(4):
        at(epoch)
        for x, y in loader:
            optimizer.zero_grad()
            error = loss(net(x), y)
            error.backward()
            session.step(error)
    return session


SCRIPTS = [
    switches_its_loss,
    registers_a_hook,
    replaces_a_method,
    changes_its_dataset,
    draws_a_constant,
    counts_its_batches,
]
