"""A script is told of a count that an epoch's beginning sets, each batch increases and the loss or the step uses,
however the script calls what increases it: callbacks in lists and dicts, by name, of a base class, in a ``with``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch.nn.functional import mse_loss

from tests.equivalence.loops import BATCH, DATA, fresh, mlp, session


class Base:
    """``step``: trains on a batch, with a weight of its loss."""

    def __init__(self, ours: Any, loader: Any, optimizer: torch.optim.Optimizer, step: Callable[..., None]) -> None:
        self.ours, self.loader, self.optimizer, self.step = ours, loader, optimizer, step
        self.count = 0

    def train_on(self, batch: Any) -> None:
        self.count += 1
        self.step(batch, 1 / self.count)


class Derived(Base):
    def train_on(self, batch: Any) -> None:
        super().train_on(batch)

    def fit(self) -> None:
        for _ in self.ours.epochs(3):
            self.count = 0
            for batch in self.loader:
                self.train_on(batch)


class WarmUp:
    order = 1

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer

    def begin_epoch(self) -> None:
        self.count = 0

    def begin_batch(self) -> None:
        self.count += 1
        self.optimizer.param_groups[0]["lr"] = 0.05 / self.count

    def __call__(self, name: str) -> bool:
        method = getattr(self, name, None)
        return bool(method and method())


class Timed:
    def __init__(self) -> None:
        self.count = 0

    def __enter__(self) -> None:
        self.count += 1

    def __exit__(self, *_: object) -> None:
        pass


class ByDict(Base):
    def fit(self) -> None:
        callbacks = {"warm-up": WarmUp(self.optimizer)}
        for _ in self.ours.epochs(3):
            for callback in callbacks.values():
                callback.begin_epoch()
            for batch in self.loader:
                for callback in callbacks.values():
                    callback.begin_batch()
                self.step(batch)


class ByNumber(Base):
    def fit(self) -> None:
        callbacks = [WarmUp(self.optimizer)]
        for _ in self.ours.epochs(3):
            for _, callback in enumerate(callbacks):
                callback.begin_epoch()
            for batch in self.loader:
                for _, callback in enumerate(callbacks):
                    callback.begin_batch()
                self.step(batch)


class ByName(Base):
    """As fastai's learner."""

    def fit(self) -> None:
        self.callbacks = [WarmUp(self.optimizer)]
        for _ in self.ours.epochs(3):
            self.call("begin_epoch")
            for batch in self.loader:
                self.call("begin_batch")
                self.step(batch)

    def call(self, name: str) -> bool:
        found = False
        for callback in sorted(self.callbacks, key=lambda one: one.order):
            found = callback(name) or found
        return found


class ByHooks(Base):
    def fit(self) -> None:
        hooks = {"before": self.before, "step": self.step}
        for _ in self.ours.epochs(3):
            self.count = 0
            for batch in self.loader:
                hooks["before"]()
                hooks["step"](batch)

    def before(self) -> None:
        self.count += 1
        self.optimizer.param_groups[0]["lr"] = 0.05 / self.count


class ByContext(Base):
    def fit(self) -> None:
        for _ in self.ours.epochs(3):
            timed = Timed()
            for batch in self.loader:
                with timed:
                    self.step(batch, 1 / timed.count)


class Counts:
    batches = 0


class OfClass(Base):
    def fit(self) -> None:
        for _ in self.ours.epochs(3):
            Counts.batches = 0
            for batch in self.loader:
                Counts.batches += 1
                self.step(batch, 1 / Counts.batches)


def shown(epochs: Iterable[int]) -> Iterator[int]:
    """The script's own bar of progress."""
    for epoch in epochs:
        print("epoch", epoch)
        yield epoch


class Shown(Base):
    def fit(self) -> None:
        for _ in shown(self.ours.epochs(3)):
            count = 0
            for batch in self.loader:
                count += 2
                self.step(batch, 1 / count)


class ByHistory(Base):
    def fit(self) -> None:
        for _ in self.ours.epochs(3):
            history: dict[str, list[float]] = {}
            for batch in self.loader:
                self.optimizer.param_groups[0]["lr"] = 0.05 / (1 + len(history.get("lr", [])))
                history.setdefault("lr", []).append(self.optimizer.param_groups[0]["lr"])
                self.step(batch)


SCRIPTS = [Derived, ByDict, ByNumber, ByName, ByHooks, ByContext, OfClass, ByHistory, Shown]


def told(kind: Any, capsys: pytest.CaptureFixture[str]) -> list[str]:
    model = fresh(mlp)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.5)
    ours = session(model, optimizer)
    kind(ours, ours.loader(DATA, global_batch_size=BATCH), optimizer, partial(step, ours, model, optimizer)).fit()
    return [line for line in capsys.readouterr().err.splitlines() if line.startswith("pilot: ")]


def step(ours: Any, model: Any, optimizer: torch.optim.Optimizer, batch: Any, weight: float = 1.0) -> None:
    x, y = batch
    optimizer.zero_grad()
    loss = mse_loss(model(x), y) * weight
    loss.backward()
    ours.step(loss)


@pytest.mark.parametrize("kind", SCRIPTS)
def test_a_count_of_the_epoch(kind: Any, capsys: pytest.CaptureFixture[str]) -> None:
    lines = told(kind, capsys)
    assert any("leaves to the next one, beginning with a value of the epoch's" in line for line in lines), lines


class Showing(Base):
    """All of these, and what they count is only printed."""

    def fit(self) -> None:
        timed, hooks = Timed(), {"before": self.before}
        for _ in self.ours.epochs(3):
            self.count, Counts.batches, timed.count = 0, 0, 0
            history: dict[str, list[float]] = {}
            for batch in self.loader:
                with timed:
                    hooks["before"]()
                    self.train_on(batch)
                Counts.batches += 1
                history.setdefault("lr", []).append(self.optimizer.param_groups[0]["lr"])
            print(self.count, Counts.batches, timed.count, len(history["lr"]))

    def before(self) -> None:
        self.count += 1

    def train_on(self, batch: Any) -> None:
        self.step(batch)


def test_counts_that_are_only_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert told(Showing, capsys) == []
