"""A script is told if an epoch's end decides by what this process has added up over its own batches."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import mse_loss

from tests.equivalence.loops import BATCH, DATA, fresh, mlp, session

Step = Callable[[Any, Any], torch.Tensor]
Script = Callable[[Any, Any, Step, torch.optim.Optimizer], None]
LR = torch.optim.lr_scheduler


class Meter:
    """As in torch's examples."""

    def __init__(self) -> None:
        self.sum, self.count = 0.0, 0

    def update(self, value: float, n: int) -> None:
        self.sum, self.count = self.sum + value * n, self.count + n

    def reset(self) -> None:
        self.sum, self.count = 0.0, 0

    @property
    def mean(self) -> float:
        return self.sum / self.count


def plateau(ours: Any, loader: Any, step: Step, optimizer: torch.optim.Optimizer) -> None:
    schedule = LR.ReduceLROnPlateau(optimizer, patience=0)
    ours.track("schedule", schedule)
    for _ in ours.epochs(2):
        total = 0.0
        for x, y in loader:
            total += step(x, y).item()
        schedule.step(total / len(loader))


def plateau_by_a_function(ours: Any, loader: Any, step: Step, optimizer: torch.optim.Optimizer) -> None:
    schedule = LR.ReduceLROnPlateau(optimizer, patience=0)
    ours.track("schedule", schedule)

    def train() -> float:
        meter = Meter()
        for x, y in loader:
            meter.update(step(x, y).item(), len(x))
        return meter.mean

    for _ in ours.epochs(2):
        loss = train()
        print(loss)
        schedule.step(loss)


def plateau_by_logs(ours: Any, loader: Any, step: Step, optimizer: torch.optim.Optimizer) -> None:
    """Each is added to a dict, and its name is used again after the decision."""
    schedule = LR.ReduceLROnPlateau(optimizer, patience=0)
    ours.track("schedule", schedule)

    for epoch in ours.epochs(2):
        logs = {"epoch": float(epoch)}
        total = 0.0
        for x, y in loader:
            total += step(x, y).item()
        logs.update(loss=total)
        schedule.step(logs["loss"])
        logs, total = {}, 0.0


def bold_driver(ours: Any, loader: Any, step: Step, optimizer: torch.optim.Optimizer) -> None:
    for _ in ours.epochs(2):
        total = 0.0
        for x, y in loader:
            total += step(x, y).item()
        if total > ours.state.get("last", 1e9):
            for group in optimizer.param_groups:
                group["lr"] *= 0.5


def stops(ours: Any, loader: Any, step: Step, _optimizer: torch.optim.Optimizer) -> None:
    for _ in ours.epochs(2):
        losses = []
        for x, y in loader:
            losses.append(step(x, y).item())  # as scripts do
        mean = np.mean(losses)
        if mean < 1e-9:
            ours.stop()


def leaves(ours: Any, loader: Any, step: Step, _optimizer: torch.optim.Optimizer) -> None:
    for _ in ours.epochs(2):
        running = 0.0
        for x, y in loader:
            running += step(x, y).item() * len(x)
        if running / 22 < 1e-9:
            print("enough")
            break


def by_the_last_loss(ours: Any, loader: Any, step: Step, optimizer: torch.optim.Optimizer) -> None:
    model = ours._training.model
    for _ in ours.epochs(2):
        for x, y in loader:
            optimizer.zero_grad()
            loss = mse_loss(model(x), y)
            loss.backward()
            ours.step(loss)
        print(step)
        if loss.item() < 1e-9:
            break


def by_the_last_loss_of_a_function(ours: Any, loader: Any, step: Step, optimizer: torch.optim.Optimizer) -> None:
    schedule = LR.ReduceLROnPlateau(optimizer, patience=0)
    ours.track("schedule", schedule)
    for _ in ours.epochs(2):
        for x, y in loader:
            loss = step(x, y)
        schedule.step(loss.item())


def loads_the_best(ours: Any, loader: Any, step: Step, _optimizer: torch.optim.Optimizer) -> None:
    model = ours._training.model
    for _ in ours.epochs(2):
        total = 0.0
        for x, y in loader:
            total += step(x, y).item()
        if total < ours.state.get("best", 1e9):
            ours.state.update(best=total, weights={name: one.clone() for name, one in model.state_dict().items()})
        else:
            model.load_state_dict(ours.state["weights"])


class Stopper:
    """As the public ones; its state is tracked."""

    def __init__(self) -> None:
        self.best, self.worse, self.enough, self.updates = 1e9, 0, False, 0

    def __call__(self, loss: float) -> None:
        if loss < self.best:
            self.best, self.worse = loss, 0
        else:
            self.worse += 1
        self.enough = self.worse > 99

    def counts(self, loss: float) -> None:
        self.updates += int(loss == loss)

    def state_dict(self) -> dict[str, Any]:
        return vars(self)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        vars(self).update(state)


def asks_an_object(ours: Any, loader: Any, step: Step, _optimizer: torch.optim.Optimizer) -> None:
    stopper = Stopper()
    ours.track("stopper", stopper)
    for _ in ours.epochs(2):
        total = 0.0
        for x, y in loader:
            total += step(x, y).item()
        stopper(total)
        if stopper.enough:
            break


def asks_its_own_object(ours: Any, loader: Any, step: Step, _optimizer: torch.optim.Optimizer) -> None:
    class Trainer:
        def __init__(self) -> None:
            self.stopper, self.meter, self.last = Stopper(), Meter(), 0.0
            ours.track("stopper", self.stopper)

        def fit(self) -> None:
            for _ in ours.epochs(2):
                total = 0.0
                for x, y in loader:
                    total += step(x, y).item()
                self.stopper(total / len(loader))
                if self.stopper.worse > 99:
                    ours.stop()

    Trainer().fit()


def in_its_phase(ours: Any, loader: Any, step: Step, optimizer: torch.optim.Optimizer) -> None:
    schedule = LR.ReduceLROnPlateau(optimizer, patience=0)
    ours.track("schedule", schedule)
    for _ in ours.epochs(2):
        for phase in ("train", "val"):
            running = 0.0
            for x, y in loader if phase == "train" else [DATA[:4]]:
                running += step(x, y).item() if phase == "train" else 0.0
            if phase != "val":
                schedule.step(running)


def in_its_validation(ours: Any, loader: Any, step: Step, optimizer: torch.optim.Optimizer) -> None:
    model, schedule = ours._training.model, LR.ReduceLROnPlateau(optimizer, patience=0)
    ours.track("schedule", schedule)
    best = 1e9
    for _ in ours.epochs(2):
        for phase in ("train", "val"):
            running = 0.0
            for x, y in loader if phase == "train" else [DATA[:4]]:
                running += (step(x, y) if phase == "train" else mse_loss(model(x), y)).item()
            if phase == "val":
                schedule.step(running)
            if phase == "val" and running < best:
                best = running
                schedule.step(running)
            if phase == "train":
                print(running)
            else:
                schedule.step(running)
            if phase != "train":
                schedule.step(running)


def slow_down(optimizer: torch.optim.Optimizer, mean: float, state: dict[str, Any], shown: str = "") -> None:
    if mean > state.get("best", 1e9) - 0.05:
        for group in optimizer.param_groups:
            group["lr"] *= 0.5
    print(shown)


def lets_a_function_decide(ours: Any, loader: Any, step: Step, optimizer: torch.optim.Optimizer) -> None:
    for _ in ours.epochs(2):
        losses = []
        for x, y in loader:
            losses.append(step(x, y).item())  # as scripts do
        slow_down(optimizer, np.mean(losses).item(), ours.state)


def lets_a_function_decide_by_name(ours: Any, loader: Any, step: Step, optimizer: torch.optim.Optimizer) -> None:
    for _ in ours.epochs(2):
        total = 0.0
        for x, y in loader:
            total += step(x, y).item()
        slow_down(optimizer, state=ours.state, mean=total / len(loader), shown="")


class Trainer:
    """Keeps its epoch's losses in attributes; ``filled`` in another method than decides."""

    def __init__(self, ours: Any, step: Step, optimizer: torch.optim.Optimizer) -> None:
        self.ours, self.step, self.optimizer = ours, step, optimizer
        self.losses, self.running, self.meter = list[float](), 0.0, Meter()

    def train(self, x: Any, y: Any) -> None:
        self.losses.append(self.step(x, y).item())

    def ends(self) -> None:
        mean = sum(self.losses) / len(self.losses)
        if mean > self.ours.state.get("best", 1e9):
            self.slow()

    def ends_and_slows(self) -> None:
        mean = sum(self.losses) / len(self.losses)
        if mean > self.ours.state.get("best", 1e9):
            for group in self.optimizer.param_groups:
                group["lr"] *= 0.5


class InMethods(Trainer):
    def fit(self, loader: Any) -> None:
        for _ in self.ours.epochs(2):
            self.losses = []
            for x, y in loader:
                self.train(x, y)
            self.ends_and_slows()


class InAnAttribute(Trainer):
    def fit(self, loader: Any) -> None:
        for _ in self.ours.epochs(2):
            self.running = 0.0
            for x, y in loader:
                self.running += self.step(x, y).item()
            if self.running > self.ours.state.get("best", 1e9):
                for group in self.optimizer.param_groups:
                    group["lr"] *= 0.5


class InAMeter(Trainer):
    def epoch(self, loader: Any) -> None:
        self.meter.reset()
        for x, y in loader:
            self.meter.update(self.step(x, y).item(), len(x))

    def fit(self, loader: Any) -> None:
        for _ in self.ours.epochs(2):
            self.epoch(loader)
            slow_down(self.optimizer, self.meter.mean, self.ours.state)


class InItsMethods(Trainer):
    """Two calls deep."""

    def fit(self, loader: Any) -> None:
        for _ in self.ours.epochs(2):
            self.losses = []
            for x, y in loader:
                self.train(x, y)
            self.ends()

    def slow(self) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] *= 0.5


class Callback:
    """As of many runners."""

    best = 1e9

    def on_epoch_end(self, trainer: Any, logs: dict[str, float]) -> None:
        print(trainer, logs)


class Slows(Callback):
    def on_epoch_end(self, trainer: Any, logs: dict[str, float]) -> None:
        if logs["loss"] > self.best:
            slow_down(trainer.optimizer, logs["loss"], {})


class Stops(Callback):
    def on_epoch_end(self, trainer: Any, logs: dict[str, float]) -> None:
        loss = logs.get("loss", 0.0)
        if loss > self.best:
            trainer.is_over = True


class WithCallbacks(Trainer):
    """Each of which it calls; ``kind``: what it has besides one that prints."""

    def __init__(self, kind: type[Callback], *args: Any) -> None:
        super().__init__(*args)
        self.callbacks, self.is_over = [Callback(), kind()], False

    def fit(self, loader: Any) -> None:
        for _ in self.ours.epochs(2):
            running = 0.0
            for x, y in loader:
                running += self.step(x, y).item()
            self.end_epoch({"loss": running / len(loader)})
            if self.is_over:
                break

    def end_epoch(self, logs: dict[str, float]) -> None:
        for callback in self.callbacks:
            callback.on_epoch_end(self, logs)


class WithEvents(WithCallbacks):
    """Which it calls by name."""

    def end_epoch(self, logs: dict[str, float]) -> None:
        self.call("on_epoch_end", logs)

    def call(self, event: str, logs: dict[str, float]) -> None:
        for callback in self.callbacks:
            getattr(callback, event)(self, logs)


def by(kind: Callable[..., Any]) -> Script:
    def script(ours: Any, loader: Any, step: Step, optimizer: torch.optim.Optimizer) -> None:
        kind(ours, step, optimizer).fit(loader)

    return script


def said(script: Script, capsys: pytest.CaptureFixture[str]) -> list[str]:
    model = fresh(mlp)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    ours = session(model, optimizer)
    loader = ours.loader(DATA, global_batch_size=BATCH)

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = mse_loss(model(x), y)
        loss.backward()
        ours.step(loss)
        return loss.detach()

    script(ours, loader, step, optimizer)
    return [line for line in capsys.readouterr().err.splitlines() if line.startswith("pilot: ")]


@pytest.mark.parametrize(
    "script",
    [
        plateau,
        plateau_by_a_function,
        plateau_by_logs,
        bold_driver,
        stops,
        leaves,
        by_the_last_loss,
        by_the_last_loss_of_a_function,
        loads_the_best,
        asks_an_object,
        asks_its_own_object,
        in_its_phase,
        lets_a_function_decide,
        lets_a_function_decide_by_name,
        by(InMethods),
        by(InAnAttribute),
        by(InAMeter),
        by(InItsMethods),
        by(partial(WithCallbacks, Slows)),
        by(partial(WithCallbacks, Stops)),
        by(partial(WithEvents, Slows)),
        by(partial(WithEvents, Stops)),
    ],
)
def test_what_is_decided_by_a_sum_over_the_processs_own_batches(
    script: Script, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = said(script, capsys)
    (line,) = [line for line in lines if "values of its own" not in line]
    assert "what the script does at an epoch's end depends on its own batches (" in line
    assert "use what session.evaluate returns" in line


@pytest.mark.parametrize("kind", [WithCallbacks, WithEvents])
def test_callbacks_that_report_are_not_told_of(kind: type[Any], capsys: pytest.CaptureFixture[str]) -> None:
    assert [line for line in said(by(partial(kind, Callback)), capsys) if "own batches" in line] == []


def test_decisions_in_the_turn_of_a_validation_are_not_told_of(capsys: pytest.CaptureFixture[str]) -> None:
    assert [line for line in said(in_its_validation, capsys) if "own batches" in line] == []


def test_reports_and_decisions_by_an_evaluation_are_not_told_of(capsys: pytest.CaptureFixture[str]) -> None:
    def script(ours: Any, loader: Any, step: Step, optimizer: torch.optim.Optimizer) -> None:
        schedule, plateau = LR.ConstantLR(optimizer), LR.ReduceLROnPlateau(optimizer)
        ours.track("schedule", schedule), ours.track("plateau", plateau)
        shown, stopper = {}, Stopper()
        ours.track("stopper", stopper)
        for epoch in ours.epochs(2):
            total, meter, losses = 0.0, Meter(), []
            for x, y in loader:
                loss = step(x, y).item()
                total += loss
                meter.update(loss, len(x))
                losses.append(loss)
            print(loss)
            ours.state["least"] = min(ours.state.get("least", 1e9), total)
            if total > 1e9:
                print("bad", total / len(losses))
            slow_down(optimizer, 1.0, {}, f"{total}")
            shown[epoch] = f"{total} {meter.mean} {optimizer.param_groups[0]['lr']} {schedule.get_last_lr()}"
            schedule.step()
            measured = ours.evaluate(DATA, lambda batch: {"loss": batch[0].mean()})
            plateau.step(measured["loss"])
            stopper.counts(total)
            stopper(measured["loss"])
            if measured["loss"] > 1e9 or stopper.enough:
                break
            print(total)
            total = measured["loss"]  # from here on another one
            plateau.step(total)

    assert [line for line in said(script, capsys) if "own batches" in line] == []
