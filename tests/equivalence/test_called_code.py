"""A script is told of what the functions do that its loop calls, methods and callbacks, as of the loop's own lines."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn.functional import mse_loss
from torch.optim.lr_scheduler import ReduceLROnPlateau

from tests.equivalence.loops import BATCH, DATA, fresh, mlp, session


class Trainer:
    """As of many scripts: what it does around its steps is in methods."""

    def __init__(self) -> None:
        self.model = fresh(mlp)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05)
        self.session = session(self.model, self.optimizer)
        self.loader = self.session.loader(DATA, global_batch_size=BATCH)
        self.stopping, self.loss, self.x = False, torch.zeros(()), torch.zeros(())

    def begin(self) -> None:
        pass

    def before(self) -> None:
        pass

    def after(self) -> None:
        pass

    def end(self) -> None:
        pass

    def fit(self) -> None:
        for _ in self.session.epochs(3):
            self.begin()
            for x, y in self.loader:
                self.x = x
                self.before()
                self.train(y)
                self.after()
            self.end()
            if self.stopping:
                break

    @torch.no_grad()
    def shown(self) -> float:
        return self.loss.item()

    def train(self, y: torch.Tensor) -> None:
        self.optimizer.zero_grad()
        self.loss = mse_loss(self.model(self.x), y)
        self.loss.backward()
        self.session.step(self.loss)

    def sets_rate(self, rate: float) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = rate


class Warms(Trainer):
    def begin(self) -> None:
        self.done = 0

    def before(self) -> None:
        self.sets_rate(0.05 / (1 + self.done))

    def after(self) -> None:
        self.done += 1


class Counts(Trainer):
    def after(self) -> None:
        state = self.session.state
        state["seen"] = state.get("seen", 0) + len(self.x)
        self.sets_rate(rate=0.05 / (1 + state["seen"]))


class Slows(Trainer):
    def after(self) -> None:
        if self.shown() > 9.0:
            self.sets_rate(0.01)


class Stops(Trainer):
    def begin(self) -> None:
        self.total = 0.0

    def after(self) -> None:
        self.total += self.loss.item()

    def end(self) -> None:
        if self.total > 99.0:
            self.stopping = True


class Fills(Trainer):
    def begin(self) -> None:
        self.losses: list[float] = []

    def after(self) -> None:
        if self.session.steps % 6 == 2:
            self.losses.append(self.loss.item())

    def end(self) -> None:
        print(sum(self.losses) / len(self.losses))


class Meter:
    """Of an epoch's losses."""

    def __init__(self) -> None:
        self.sum, self.count = 0.0, 0

    def reset(self) -> None:
        self.sum, self.count = 0.0, 0

    def update(self, value: float) -> None:
        self.sum += value
        self.count += 1

    @property
    def mean(self) -> float:
        return self.sum / max(1, self.count)


class Callback:
    """One that only shows something."""

    def __init__(self) -> None:
        self.meter = Meter()

    def on_epoch_begin(self, _trainer: Any) -> None:
        self.meter.reset()

    def on_batch_end(self, _trainer: Any, *losses: float) -> None:
        for loss in losses:
            self.meter.update(loss)

    def on_epoch_end(self, trainer: Any) -> None:
        print(self.meter.mean, trainer.optimizer.param_groups[0]["lr"])


class Plateau(Callback):
    """It sets a learning rate by the mean loss."""

    def __init__(self, trainer: Trainer) -> None:
        super().__init__()
        self.schedule = ReduceLROnPlateau(trainer.optimizer)
        trainer.session.track("schedule", self.schedule)

    def on_batch_end(self, _trainer: Any, *losses: float) -> None:
        self.meter.update(losses[0])

    def on_epoch_end(self, _trainer: Any) -> None:
        mean = self.meter.mean
        if mean == 0.0:
            return
        self.schedule.step(mean)


class Calls(Trainer):
    """Each callback, by name."""

    def __init__(self, makes: Callable[[Trainer], Callback]) -> None:
        super().__init__()
        self.callbacks = [Callback(), makes(self)]

    def call(self, event: str, *args: Any) -> None:
        for callback in self.callbacks:
            getattr(callback, event)(self, *args)

    def begin(self) -> None:
        self.call("on_epoch_begin")

    def after(self) -> None:
        self.call("on_batch_end", self.loss.item())

    def end(self) -> None:
        self.call("on_epoch_end")


def told(trainer: Trainer, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Not of meters, of which scripts are told in general."""
    trainer.fit()
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("pilot: ")]
    return [line for line in lines if "values of its own" not in line]


@pytest.mark.parametrize(
    ("makes", "words"),
    [
        (Warms, "beginning with a value of the epoch's (self.done)"),
        (Counts, "a count of samples or tokens (session.state['seen'])"),
        (Slows, "by the loss of its batch (self.loss, shown())"),
        (Stops, "depends on its own batches (self.stopping, self.total)"),
        (Fills, "what only some of its batches put in self.losses"),
        (lambda: Calls(Plateau), "depends on its own batches ("),
    ],
)
def test_methods_and_callbacks(makes: Callable[[], Trainer], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    (line,) = told(makes(), capsys)
    assert words in line


def test_what_only_reports_is_not_told_of(capsys: pytest.CaptureFixture[str]) -> None:
    assert told(Calls(lambda _trainer: Callback()), capsys) == []


def stepped(trainer: Trainer, y: torch.Tensor) -> None:
    trainer.train(y)


def test_functions_with_their_own_variables(capsys: pytest.CaptureFixture[str]) -> None:
    """Of the same names as the loop's."""
    trainer = Trainer()

    def slow(total: float) -> None:
        rate = 0.05 / total
        trainer.sets_rate(rate)

    def script() -> None:
        total = 1.0
        for _ in trainer.session.epochs(2):
            count = 0
            for x, y in trainer.loader:
                trainer.x = x
                stepped(trainer, y)
                slow(total=2.0 + count)
                count = 1 + count
            print(total)

    script()
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition("(")[2].partition(")")[0] for line in lines if "the epoch's (" in line] == ["count"]


def test_an_argument_that_is_none_is_no_warning(recwarn: pytest.WarningsRecorder) -> None:
    """Written where the function is called, ``None(x)`` would be one for Python."""
    trainer = Trainer()

    def finish(y: torch.Tensor, show: Callable[[torch.Tensor], None] | None = None) -> None:
        trainer.train(y)
        if show is not None:
            show(trainer.loss)

    def script() -> None:
        for _ in trainer.session.epochs(2):
            for x, y in trainer.loader:
                trainer.x = x
                finish(y, None)

    script()
    assert [one for one in recwarn if issubclass(one.category, SyntaxWarning)] == []
