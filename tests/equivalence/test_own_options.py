"""A script is told that its batch, or a number that it draws in a step, sets options; not of what ranks share."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import mse_loss

from tests.equivalence.loops import BATCH, DATA, fresh, mlp, session

Script = Callable[[Any, Any, Any, torch.optim.Optimizer], None]


def by_accuracy(ours: Any, loader: Any, model: Any, optimizer: torch.optim.Optimizer) -> None:
    for _ in ours.epochs(1):
        for x, y in loader:
            optimizer.zero_grad()
            output = model(x)
            loss = mse_loss(output, y)
            loss.backward()
            accuracy = ((output - y).abs() < 0.5).double().mean().item()
            for group in optimizer.param_groups:
                group["momentum"] = 0.9 * accuracy
            ours.step(loss)


def by_divergence(ours: Any, loader: Any, model: Any, optimizer: torch.optim.Optimizer) -> None:
    """As PPO adapts its rate."""
    for _ in ours.epochs(1):
        for x, y in loader:
            before = y.flip(0)
            output = model(x)
            with torch.no_grad():
                kl = (output - before).square().mean()
            if kl > 0.02:
                rate = 0.04
                for group in optimizer.param_groups:
                    group["lr"] = rate
            loss = mse_loss(output, y)
            optimizer.zero_grad()
            loss.backward()
            ours.step(loss)


def by_random_length(ours: Any, loader: Any, model: Any, optimizer: torch.optim.Optimizer) -> None:
    """As AWD-LSTM's batches of text."""
    for _ in ours.epochs(1):
        for x, y in loader:
            length = max(5, int(np.random.normal(70, 5)))
            rate = optimizer.param_groups[0]["lr"]
            optimizer.param_groups[0]["lr"] = rate * length / 70
            optimizer.zero_grad()
            loss = mse_loss(model(x), y)
            loss.backward()
            ours.step(loss)
            optimizer.param_groups[0]["lr"] = rate


def by_chance(ours: Any, loader: Any, model: Any, optimizer: torch.optim.Optimizer) -> None:
    for _ in ours.epochs(1):
        for x, y in loader:
            if random.random() < 0.5:
                optimizer.param_groups[0]["lr"] = 0.01
            optimizer.zero_grad()
            loss = mse_loss(model(x), y)
            loss.backward()
            ours.step(loss)


def by_the_batch_before(ours: Any, loader: Any, model: Any, optimizer: torch.optim.Optimizer) -> None:
    spread = 1.0
    for _ in ours.epochs(1):
        for x, y in loader:
            optimizer.param_groups[0]["lr"] = 0.01 * spread
            optimizer.zero_grad()
            loss = mse_loss(model(x), y)
            loss.backward()
            ours.step(loss)
            spread = float(x.std())


@pytest.mark.parametrize(
    ("script", "names"),
    [
        (by_accuracy, "accuracy"),
        (by_divergence, "kl"),
        (by_random_length, "length"),
        (by_chance, "random.random"),
        (by_the_batch_before, "spread"),
    ],
)
def test_what_ranks_have_apart(script: Script, names: str, capsys: pytest.CaptureFixture[str]) -> None:
    (line,) = told(script, capsys)
    assert f"by what it draws in a step ({names})" in line


def test_what_they_share(capsys: pytest.CaptureFixture[str]) -> None:
    def script(ours: Any, loader: Any, model: Any, optimizer: torch.optim.Optimizer) -> None:
        own = random.Random(3)
        for epoch in ours.epochs(2):
            for number, (x, y) in enumerate(loader):
                if x.ndim > 1 and x.device.type == "cpu":
                    x = x.clone()
                if random.random() < 0.5:
                    x = x + 0.1 * torch.randn_like(x)
                for group in optimizer.param_groups:
                    group["lr"] = 0.01 * (1 + ours.steps / 10) / (1 + epoch)
                if (number + epoch) % 3 == 2:
                    optimizer.param_groups[0]["lr"] *= 0.5
                optimizer.zero_grad()
                loss = mse_loss(model(x), y)
                loss.backward()
                if ours.sum(loss):
                    norm = sum(float(one.grad.norm()) for one in model.parameters())
                    optimizer.param_groups[0]["momentum"] = min(0.5, norm / 100)
                if ours.step():
                    optimizer.param_groups[0]["weight_decay"] = own.random() / 1e3
            worst = ours.evaluate(DATA, lambda batch: {"loss": mse_loss(model(batch[0]), batch[1])})["loss"]
            for group in optimizer.param_groups:
                group["lr"] = min(0.05, worst)

    assert told(script, capsys) == []


def told(script: Script, capsys: pytest.CaptureFixture[str]) -> list[str]:
    model = fresh(mlp)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.5)
    ours = session(model, optimizer)
    script(ours, ours.loader(DATA, global_batch_size=BATCH), model, optimizer)
    return [line for line in capsys.readouterr().err.splitlines() if "another option, by its own batch" in line]
