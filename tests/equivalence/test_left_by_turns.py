"""A script is told of attributes that its objects get in the loop, and that only some of its turns set for others; not
of those that each turn has.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn.functional import mse_loss

from tests.equivalence.loops import BATCH, DATA, fresh, mlp, session


class Trainer:
    """As people write them: what it needs is made where it is first known."""

    def __init__(self) -> None:
        self.model = fresh(mlp)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05)
        self.session: Any = session(self.model, self.optimizer)
        self.loader = self.session.loader(DATA, global_batch_size=BATCH)

    def step(self, loss: torch.Tensor) -> None:
        self.optimizer.zero_grad()
        loss.backward()
        self.session.step(loss)

    def loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return mse_loss(self.model(x), y)


class ByFirstBatch(Trainer):
    def train(self) -> None:
        for epoch in self.session.epochs(3):
            for number, (x, y) in enumerate(self.loader):
                loss = self.loss(x, y)
                if epoch == 0 and number == 0:
                    self.its = loss.detach()
                self.step(loss / self.its)


class InAMethod(Trainer):
    """Which each batch calls."""

    def train(self) -> None:
        for epoch in self.session.epochs(3):
            for number, (x, y) in enumerate(self.loader):
                self.step(self.scaled(self.loss(x, y), is_first=epoch == number == 0))

    def scaled(self, loss: torch.Tensor, *, is_first: bool) -> torch.Tensor:
        if is_first:
            self.its = loss.detach()
        return loss / self.its


class ByFirstEpoch(Trainer):
    def train(self) -> None:
        for epoch in self.session.epochs(3):
            if epoch == 0:
                self.its = torch.tensor(0.3)
            for x, y in self.loader:
                self.step(self.its * self.loss(x, y))


class AtAnEnd(Trainer):
    def train(self) -> None:
        for epoch in self.session.epochs(3):
            for x, y in self.loader:
                self.step(self.loss(x, y) * (self.its if epoch else 1.0))
            self.its = 0.5


class ByIteration(Trainer):
    def train(self) -> None:
        for number in self.session.iterations(12):
            x, y = self.loader.next()
            if number == 0:
                self.its = torch.tensor(0.3)
            self.step(self.its * self.loss(x, y))


def said(kind: Callable[[], Any], capsys: pytest.CaptureFixture[str]) -> list[str]:
    kind().train()
    return [line for line in capsys.readouterr().err.splitlines() if line.startswith("pilot: ")]


@pytest.mark.parametrize("kind", [ByFirstBatch, InAMethod, ByFirstEpoch, AtAnEnd, ByIteration])
def test_attributes_that_some_turns_set(kind: Callable[[], Any], capsys: pytest.CaptureFixture[str]) -> None:
    (line,) = said(kind, capsys)
    assert "keeps values of its own that change in its loop (self.its)" in line


class InEachTurn(Trainer):
    """What is only printed where it is set, and what each turn has before it uses that."""

    def train(self) -> None:
        for epoch in self.session.epochs(3):
            self.scale = torch.tensor(0.5**epoch)
            self.begun = time.time()
            for number, (x, y) in enumerate(self.loader):
                self.batch = x
                self.output = self.model(self.batch)
                loss = self.scale * mse_loss(self.output, y)
                if number == 0:
                    self.shown = loss.item()
                    print(self.shown)
                self.step(loss)
            self.took = time.time() - self.begun
            print(epoch, self.took)


def test_attributes_that_each_turn_sets(capsys: pytest.CaptureFixture[str]) -> None:
    assert said(InEachTurn, capsys) == []
