"""What grows between epochs, buffers and a network: nodes that join, and void steps, know of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss

from tests.equivalence.loops import (
    BATCH,
    DATA,
    EPOCHS,
    Result,
    Script,
    a_step,
    assert_equal,
    fresh,
    mlp,
    tensors,
    trained,
)


class Bank(nn.Module):
    """Of past values; it begins empty."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("kept", torch.zeros(0))

    def take(self, value: torch.Tensor) -> None:
        self.kept = torch.cat([self.kept, value[None]])

    def mean(self) -> torch.Tensor:
        return self.kept.sum() / max(1, len(self.kept))


class WithBank(nn.Sequential):
    """A model with one."""

    def __init__(self) -> None:
        super().__init__(*mlp())
        self.add_module("bank", Bank())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self[2](self[1](self[0](x)))
        return output


def in_the_model(made: Callable[..., Any]) -> Result:
    """Like the exemplars of class-incremental learning."""
    model = fresh(WithBank)
    return grown(made, model, model.bank, at_beginning=True)


def tracked(made: Callable[..., Any]) -> Result:
    """Like rollouts."""
    return grown(made, fresh(mlp), fresh(Bank), at_beginning=False)


def grown(made: Callable[..., Any], model: nn.Module, bank: Any, *, at_beginning: bool) -> Result:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    session = made(model, optimizer)
    loader = session.loader(DATA, global_batch_size=BATCH)
    if not at_beginning:
        session.track("bank", bank)
    for epoch in session.epochs(EPOCHS + 1):
        if at_beginning:
            bank.take(torch.tensor(epoch + 1.0, dtype=torch.float64))
        for x, y in loader:
            optimizer.zero_grad()
            loss = mse_loss(model(x) + 0.1 * bank.mean(), y)
            loss.backward()
            session.step(loss)
        if not at_beginning:
            bank.take(next(model.parameters()).detach().sum())
    return tensors(model=model, optimizer=optimizer, bank=bank)


@pytest.mark.parametrize("script", [in_the_model, tracked])
def test_growing_buffers(script: Script) -> None:
    assert_equal(script, joins=range(2, 20, 3))


class Fading(nn.Module):
    """A layer that fades in."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 1)
        self.register_buffer("alpha", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.second((1.0 - self.alpha) * x + self.alpha * self.first(x).tanh())
        return output


def fading_in_later(made: Callable[..., Any]) -> Result:
    """Not in the first epoch; what else it changes only later is a parameter."""
    model, epochs = fresh(Fading), [0]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    def body(*parts: Any) -> None:
        if epochs[-1]:
            model.alpha += 0.1
            with torch.no_grad():
                model.second.weight.mul_(0.9)
        a_step(*parts)

    return trained(made, model, optimizer, at_first=epochs.append, body=body)


def test_what_changes_only_from_a_later_epoch_on() -> None:
    assert_equal(fading_in_later, operations=range(7, 16), joins=range(7, 16, 2))
