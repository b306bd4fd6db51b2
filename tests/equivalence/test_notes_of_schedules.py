"""What a script is told of functions of its schedules that keep something, which torch does not save; see
:mod:`tests.equivalence.test_notes`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.nn.functional import mse_loss
from torch.optim.lr_scheduler import ChainedScheduler, CyclicLR, LambdaLR, LRScheduler, MultiplicativeLR, SequentialLR

from pilot.core.errors import UserError
from tests.equivalence.loops import BATCH, DATA, fresh, mlp, session

Make = Callable[[torch.optim.Optimizer], LRScheduler]


def counting() -> Callable[[Any], float]:
    """A closure with a number."""
    count = 0

    def factor(_: Any) -> float:
        nonlocal count
        count += 1
        return 1 / (1 + count)

    return factor


def listing() -> Callable[[Any], float]:
    """A closure with a list."""
    count = [0]

    def factor(_: Any) -> float:
        count[0] += 1
        return 1 / (1 + count[0])

    return factor


class Factor:
    """An object that counts."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, _: Any) -> float:
        self.count += 1
        return 1 / (1 + self.count)


class Slotted:
    """Without a dict of attributes."""

    __slots__ = ("count",)

    def __call__(self, _: Any) -> float:
        return 1.0


class Warmup(LambdaLR):
    """With a function of its own."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.calls = 0
        super().__init__(optimizer, self.factor)

    def factor(self, epoch: int) -> float:
        """What its state has."""
        self.calls += 1
        return 1 / (1 + epoch)


class Trainer:
    """Its rate does not change."""

    def __init__(self, make: Callable[[Trainer, torch.optim.Optimizer], LRScheduler]) -> None:
        self.warmup, self.seen = 3, 0
        self.model = fresh(mlp)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05)
        self.scheduler = make(self, self.optimizer)
        self.session = session(self.model, self.optimizer, self.scheduler, schedule="step")
        self.loader = self.session.loader(DATA, global_batch_size=BATCH)

    def factor(self, epoch: int) -> float:
        """Of the rate."""
        return min(1.0, (1 + epoch) / self.warmup)

    def fit(self) -> None:
        """Count its steps."""
        for _ in self.session.epochs(1):
            for x, y in self.loader:
                self.optimizer.zero_grad()
                loss = mse_loss(self.model(x), y)
                loss.backward()
                self.session.step(loss)
                self.seen += 1


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda o: LambdaLR(o, counting()), "lr_lambdas[0].count"),
        (lambda o: LambdaLR(o, listing()), "lr_lambdas[0].count[0]"),
        (lambda o: LambdaLR(o, Factor().__call__), "lr_lambdas[0].count"),
        (lambda o: LambdaLR(o, partial(Factor.__call__, Factor())), "lr_lambdas[0].args[0].count"),
        (lambda o: MultiplicativeLR(o, counting()), "lr_lambdas[0].count"),
        (lambda o: CyclicLR(o, 0.01, 0.1, step_size_up=3, scale_fn=counting()), "_scale_fn_custom.count"),
        (
            lambda o: SequentialLR(o, [LambdaLR(o, counting()), LambdaLR(o, lambda _: 1.0)], [99]),
            "_schedulers[0].lr_lambdas[0].count",
        ),
        (lambda o: LambdaLR(o, Factor()), ""),
        (lambda o: LambdaLR(o, lambda epoch: 0.9**epoch), ""),
        (Warmup, ""),
        (lambda o: ChainedScheduler([Warmup(o), LambdaLR(o, lambda _: 1.0)]), ""),
    ],
)
def test_functions_of_schedules_that_keep_something(make: Make, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert told(make, capsys) == ([f"scheduler.{name}"] if name else [])


def told(make: Make, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """What a script with this schedule is told of; its own variables give it no more."""
    model = fresh(mlp)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    ours = session(model, optimizer, make(optimizer), schedule="step")
    loader = ours.loader(DATA, global_batch_size=BATCH)
    for _ in ours.epochs(2):
        for x, y in loader:
            optimizer.zero_grad()
            loss = mse_loss(model(x), y)
            loss.backward()
            ours.step(loss)
    lines = [line for line in capsys.readouterr().err.splitlines() if "keeps values" in line]
    return [line.split("change in its loop (")[1].split(")")[0] for line in lines]


@pytest.mark.parametrize(
    "make",
    [
        lambda trainer, optimizer: LambdaLR(optimizer, trainer.factor),
        lambda trainer, optimizer: LambdaLR(optimizer, lambda epoch: trainer.factor(epoch)),
        lambda trainer, optimizer: SequentialLR(optimizer, [LambdaLR(optimizer, partial(Trainer.factor, trainer))], []),
    ],
)
def test_a_trainer_that_a_schedule_uses_is_told_of_once(make: Any, capsys: pytest.CaptureFixture[str]) -> None:
    Trainer(make).fit()

    (line,) = [line for line in capsys.readouterr().err.splitlines() if "keeps values" in line]
    assert "change in its loop (self.seen)" in line


def test_a_running_functions_variable_that_a_schedule_reads_is_told_of_once(
    capsys: pytest.CaptureFixture[str],
) -> None:
    model, kept = fresh(mlp), SimpleNamespace(rate=1.0)
    optimizer, epoch = torch.optim.SGD(model.parameters(), lr=0.05), 0
    scheduler = LambdaLR(optimizer, lambda _: kept.rate / (1 + epoch))
    ours = session(model, optimizer, scheduler, schedule="step")
    loader = ours.loader(DATA, global_batch_size=BATCH)
    for epoch in ours.epochs(3):  # noqa: B007  # the schedule reads it
        for x, y in loader:
            optimizer.zero_grad()
            loss = mse_loss(model(x), y)
            loss.backward()
            ours.step(loss)

    (line,) = [line for line in capsys.readouterr().err.splitlines() if "keeps values" in line]
    assert "change in its loop (epoch)" in line


def test_a_schedule_that_gives_no_state_is_refused_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UserError, match=r"LambdaLR gives no state: .*: its class must not have __slots__"):
        told(lambda o: LambdaLR(o, Slotted()), capsys)
