"""Scripts that compute with something that neither the state nor all nodes have."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn.functional import l1_loss, mse_loss
from torch.utils.data import TensorDataset

import pilot.train

SAMPLES = 16
X = torch.randn(SAMPLES, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
Y = X.sum(1, keepdim=True)
Session = pilot.train.Session
Script = Callable[[Any], None]
Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


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


_FACTORS = itertools.cycle([2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0])


def drawn() -> float:
    """A number without a seed, which is surely another one than the last ones."""
    return next(_FACTORS)


def draws_a_constant(options: Any) -> None:
    factor = drawn()
    train(model(), options, loss=lambda y, target: mse_loss(y * factor, target))


def train(
    net: nn.Module,
    options: dict[str, Any],
    at: Callable[[int], None] = lambda _: None,
    loss: Loss = mse_loss,
) -> Session:
    """``at`` is called at each epoch's beginning."""
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    session = pilot.train.session(net, optimizer, seed=1, lr_rule="linear")
    loader = session.loader(TensorDataset(X, Y), **options)
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
    draws_a_constant,
]


def steps_two_by_name(options: Any, other: str = "") -> None:
    """Each draws its own numbers; the loss of ``other`` is scaled by one that nobody has seeded."""
    nets = {"d": model(), "g": model()}
    optimizers = {name: torch.optim.SGD(net.parameters(), lr=0.01) for name, net in nets.items()}
    session = pilot.train.session(nets, optimizers, seed=1, lr_rule="linear")
    factor = drawn()
    loader = session.loader(TensorDataset(X, Y), **options)
    for _ in session.epochs(4):
        for x, y in loader:
            for name, net in nets.items():
                optimizers[name].zero_grad()
                error = mse_loss(net(x + torch.randn_like(x)) * (factor if name == other else 1.0), y)
                error.backward()
                session.step(error, name)
