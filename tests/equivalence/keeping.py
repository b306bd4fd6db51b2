"""What scripts of the tests of notes keep and change, and what such a script is told."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.nn.functional import mse_loss

from tests.equivalence.loops import BATCH, DATA, fresh, mlp, session


class Stopper:
    """Early stopping."""

    def __init__(self) -> None:
        self.counter = 0
        self.options = {"patience": 3}


@dataclass(slots=True)
class Best:
    """Without a dict of attributes."""

    measure: float = 0.0

    def improve(self) -> None:
        self.measure += 1.0


class Nested:
    """A trainer whose loss has a weight that has another object; and what has the trainer."""

    def __init__(self) -> None:
        self.callbacks = [SimpleNamespace(trainer=self)]
        self.loss = Stopper()
        self.loss.trainer, self.loss.weight = self, Stopper()
        self.loss.weight.best = Best()


class Pool:
    """Of past outputs."""

    def __init__(self) -> None:
        self.kept: list[torch.Tensor] = []
        self.mean = torch.zeros(1)


class OfNumbers:
    """Its class has the number that it begins with."""

    rate = 1.0


def counting() -> Callable[[], int]:
    """Counts its calls."""
    count = 0

    def call() -> int:
        nonlocal count
        count += 1
        return count

    return call


def halving() -> Iterator[float]:
    """A schedule."""
    rate = 1.0
    while True:
        yield rate
        rate /= 2


def begun() -> Iterator[float]:
    """The same, after its first number."""
    rates = halving()
    next(rates)
    return rates


def with_a_default() -> Callable[[], int]:
    """Counts its calls in a default value."""

    def call(count: list[int] = [0]) -> int:  # noqa: B006  # as scripts do
        count[0] += 1
        return count[0]

    return call


class Focal(torch.nn.Module):
    """A loss with a number of the script's."""

    def __init__(self) -> None:
        super().__init__()
        self.gamma = 2.0


class OwnSGD(torch.optim.SGD):
    """An optimizer of the script's."""


def changing(make: Callable[[], Any], change: Callable[[Any], Any]) -> Callable[[Any, Any, Callable[..., None]], None]:
    """A script that changes after each step what it made before its loop (``kept``)."""

    def script(ours: Any, loader: Any, step: Any) -> None:
        kept = make()
        for _ in ours.epochs(1):
            for x, y in loader:
                step(x, y)
                change(kept)

    return script


def said(script: Callable[[Any, Any, Callable[..., None]], None], capsys: pytest.CaptureFixture[str]) -> list[str]:
    """What a script tells; it is called with a session, its loader and a function that trains on a batch."""
    model = fresh(mlp)
    optimizer = OwnSGD(model.parameters(), lr=0.05, momentum=0.9)
    ours = session(model, optimizer)
    loader = ours.loader(DATA, global_batch_size=BATCH)

    def step(x: torch.Tensor, y: torch.Tensor, more: Any = 0.0) -> None:
        optimizer.zero_grad()
        loss = mse_loss(model(x), y) + more
        loss.backward()
        ours.step(loss)

    script(ours, loader, step)
    return [line for line in capsys.readouterr().err.splitlines() if line.startswith("pilot: ")]
