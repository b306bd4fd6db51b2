"""A script is told of a loss that it makes at an epoch's beginning with a number that it computes with the model there;
see :mod:`tests.equivalence.test_epoch_outputs`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import huber_loss, mse_loss

from tests.equivalence.loops import DATA
from tests.equivalence.test_epoch_outputs import Step, told

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def measured(model: nn.Module) -> float:
    with torch.no_grad():
        return float(mse_loss(model(DATA.tensors[0]), DATA.tensors[1]))


class Called:
    def __init__(self, margin: float) -> None:
        self.margin = margin

    def __call__(self, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return huber_loss(output, target, delta=self.margin)


def made_by_a_function(margin: float) -> Loss:
    def loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return huber_loss(output, target, delta=margin)

    return loss


MADE: dict[str, Callable[[float], Loss]] = {
    "partial": lambda margin: partial(huber_loss, delta=margin),
    "torch's": lambda margin: nn.HuberLoss(delta=margin),
    "object": Called,
    "function": made_by_a_function,
}


@pytest.mark.parametrize("kind", MADE)
def test_a_loss_that_something_makes(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    def script(ours: Any, model: nn.Module, loader: Any, step: Step) -> None:
        for _ in ours.epochs(2):
            criterion = MADE[kind](measured(model))
            for x, y in loader:
                step(criterion(model(x), y))

    (line,) = told(script, capsys)
    assert "(criterion)" in line


@pytest.mark.parametrize("kind", MADE)
def test_a_loss_by_the_epoch_is_none(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    def script(ours: Any, model: nn.Module, loader: Any, step: Step) -> None:
        for epoch in ours.epochs(2):
            print(measured(model))
            criterion = MADE[kind](1.0 / (1 + epoch))
            for x, y in loader:
                step(criterion(model(x), y))

    assert told(script, capsys) == []


def test_a_function_that_reads_it(capsys: pytest.CaptureFixture[str]) -> None:
    def script(ours: Any, model: nn.Module, loader: Any, step: Step) -> None:
        for _ in ours.epochs(2):
            margin = measured(model)

            def criterion(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
                return huber_loss(output, target, delta=margin)  # noqa: B023  # as scripts have it

            for x, y in loader:
                step(criterion(model(x), y))

    (line,) = told(script, capsys)
    assert "(margin)" in line or "(criterion)" in line


def test_a_lambda_that_reads_it(capsys: pytest.CaptureFixture[str]) -> None:
    def script(ours: Any, model: nn.Module, loader: Any, step: Step) -> None:
        for _ in ours.epochs(2):
            margin = measured(model)
            criterion = lambda output, target: huber_loss(output, target, delta=margin)  # noqa: B023, E731  # the same
            for x, y in loader:
                step(criterion(model(x), y))

    (line,) = told(script, capsys)
    assert "(criterion)" in line


def test_an_argument_of_the_scripts(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = SimpleNamespace(margin=1.0)

    def criterion(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return huber_loss(output, target, delta=arguments.margin)

    def script(ours: Any, model: nn.Module, loader: Any, step: Step) -> None:
        for _ in ours.epochs(2):
            arguments.margin = measured(model)
            for x, y in loader:
                step(criterion(model(x), y))

    (line,) = told(script, capsys)
    assert "arguments.margin" in line


def test_what_is_trained_is_none(capsys: pytest.CaptureFixture[str]) -> None:
    def warmed(model: nn.Module) -> nn.Module:
        measured(model)
        return model

    def script(ours: Any, model: nn.Module, loader: Any, step: Step) -> None:
        for _ in ours.epochs(2):
            net = warmed(model)
            for x, y in loader:
                step(mse_loss(net(x), y))

    assert told(script, capsys) == []
