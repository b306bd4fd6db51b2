"""A script is told of gradients that it computes after a batch's step and by which it changes what it trains: on
several ranks each would have its own, and the alarm would stop the trainer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss

from tests.equivalence.loops import BATCH, DATA, fresh, mlp, session

Then = Callable[[nn.Module, torch.optim.Optimizer, torch.Tensor, torch.Tensor], None]


def estimates_curvature(model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor, y: torch.Tensor) -> None:
    optimizer.zero_grad()
    output = model(x)
    mse_loss(output, (output + y).detach()).backward()
    for p in model.parameters():
        assert p.grad is not None
        optimizer.state[p]["momentum_buffer"].add_(p.grad.square(), alpha=0.01)
    optimizer.zero_grad()


def steps_by_hand(model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor, y: torch.Tensor) -> None:
    optimizer.zero_grad()
    mse_loss(model(x), y).backward()
    with torch.no_grad():
        for p in model.parameters():
            p -= 0.01 * (p.grad if p.grad is not None else 0.0)
    optimizer.zero_grad()


def looks_at_gradients(model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor, y: torch.Tensor) -> None:
    optimizer.zero_grad()
    mse_loss(model(x), y).backward()
    assert max(float(p.grad.abs().max()) for p in model.parameters() if p.grad is not None) < 99
    optimizer.zero_grad()


def clamps(model: nn.Module, *_: Any) -> None:
    with torch.no_grad():
        for p in model.parameters():
            p.clamp_(-0.5, 0.5)


def told(then: Then, capsys: pytest.CaptureFixture[str]) -> list[str]:
    model = fresh(mlp)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    ours = session(model, optimizer)
    loader = ours.loader(DATA, global_batch_size=BATCH)
    for _ in ours.epochs(2):
        for x, y in loader:
            optimizer.zero_grad()
            loss = mse_loss(model(x), y)
            loss.backward()
            if ours.step(loss):
                then(model, optimizer, x, y)
        clamps(model)  # at an epoch's end a script may change what it likes
    return [line for line in capsys.readouterr().err.splitlines() if "computes gradients after session.step" in line]


@pytest.mark.parametrize("then", [estimates_curvature, steps_by_hand])
def test_gradients_after_the_step_that_change_what_is_trained(then: Then, capsys: pytest.CaptureFixture[str]) -> None:
    (line,) = told(then, capsys)
    assert "test_after_step.py, line " in line


@pytest.mark.parametrize("then", [looks_at_gradients, clamps])
def test_gradients_that_are_only_looked_at_and_changes_without_any(
    then: Then, capsys: pytest.CaptureFixture[str]
) -> None:
    assert told(then, capsys) == []


def test_optimizers_that_are_stepped_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    model, critic = fresh(mlp), fresh(mlp)
    optimizers = {"a": torch.optim.SGD(model.parameters(), lr=0.05), "b": torch.optim.SGD(critic.parameters(), lr=0.05)}
    ours = session({"a": model, "b": critic}, optimizers)
    loader = ours.loader(DATA, global_batch_size=BATCH)
    for _ in ours.epochs(2):
        for x, y in loader:
            for name, one in (("a", model), ("b", critic)):
                optimizers[name].zero_grad()
                loss = mse_loss(one(x), y)
                loss.backward()
                ours.step(loss, name)
    assert "computes gradients" not in capsys.readouterr().err
