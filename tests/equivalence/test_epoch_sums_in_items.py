"""A script is told of what it decides by a sum over its own batches, where that is made in a comprehension or is an
item of a dict, too; and not of another item of that dict.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import mse_loss

from tests.equivalence.loops import DATA
from tests.equivalence.test_epoch_sums import LR, Meter, Script, Step, Trainer, by, said, slow_down


def plateau(ours: Any, optimizer: torch.optim.Optimizer) -> LR.ReduceLROnPlateau:
    made = LR.ReduceLROnPlateau(optimizer, patience=0)
    ours.track("schedule", made)
    return made


def a_sum(ours: Any, loader: Any, step: Step, optimizer: torch.optim.Optimizer) -> None:
    schedule = plateau(ours, optimizer)
    for _ in ours.epochs(2):
        total = sum(step(x, y).item() for x, y in loader)
        schedule.step(total / len(loader))


def a_list(ours: Any, loader: Any, step: Step, optimizer: torch.optim.Optimizer) -> None:
    schedule = plateau(ours, optimizer)
    for _ in ours.epochs(2):
        losses = [step(x, y).item() for x, y in loader if len(x)]
        schedule.step(sum(losses) / len(losses))


def a_mean(ours: Any, loader: Any, step: Step, optimizer: torch.optim.Optimizer) -> None:
    schedule = plateau(ours, optimizer)

    def epoch() -> Any:
        return np.mean([step(*batch).item() for batch in loader])

    for _ in ours.epochs(2):
        schedule.step(epoch())


def an_item(ours: Any, loader: Any, step: Step, optimizer: torch.optim.Optimizer) -> None:
    schedule, logs = plateau(ours, optimizer), {"loss": 0.0}
    for _ in ours.epochs(2):
        logs["loss"] = 0.0
        for x, y in loader:
            logs["loss"] += step(x, y).item()
        print(logs)
        schedule.step(logs["loss"])


def meters(ours: Any, loader: Any, step: Step, optimizer: torch.optim.Optimizer) -> None:
    schedule = plateau(ours, optimizer)
    for _ in ours.epochs(2):
        its = defaultdict(Meter)
        for x, y in loader:
            its["loss"].update(step(x, y).item(), len(x))
        schedule.step(its["loss"].mean)


class KerasLike(Trainer):
    def epoch(self, loader: Any) -> None:
        self.logs = {"loss": 0.0}
        for x, y in loader:
            self.logs["loss"] += self.step(x, y).item()

    def fit(self, loader: Any) -> None:
        for _ in self.ours.epochs(2):
            self.epoch(loader)
            slow_down(self.optimizer, self.logs["loss"], self.ours.state)


def groups(ours: Any, loader: Any, step: Step, optimizer: torch.optim.Optimizer) -> None:
    """Which are dicts that another loop had before."""

    def epoch() -> float:
        return float(sum(step(x, y).item() for x, y in loader))

    for group in optimizer.param_groups:
        group["lr"] *= 0.5
    for _ in ours.epochs(2):
        loss = epoch()
        for group in optimizer.param_groups:
            if loss > 1:
                group["lr"] *= 0.5


DECIDE = {
    "a sum": (a_sum, "(step(x, y).item() for x, y in loader)"),
    "a list": (a_list, "[step(x, y).item() for x, y in loader if len(x)]"),
    "a mean": (a_mean, "[step(*batch).item() for batch in loader]"),
    "an item": (an_item, "logs['loss']"),
    "groups": (groups, "epoch()"),
    "meters": (meters, "its['loss']"),
    "as Keras": (by(KerasLike), "self.logs['loss']"),
}


@pytest.mark.parametrize("kind", DECIDE)
def test_what_is_decided(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    script, name = DECIDE[kind]
    lines = [one for one in said(script, capsys) if "depends on its own batches" in one]
    assert len(lines) == 1
    assert name in lines[0]


def another_item(ours: Any, loader: Any, step: Step, optimizer: torch.optim.Optimizer) -> None:
    schedule, model = plateau(ours, optimizer), torch.nn.Linear(3, 1).double()
    for _ in ours.epochs(2):
        logs = {"loss": 0.0, "validated": 0.0}
        for x, y in loader:
            logs["loss"] += step(x, y).item()
        means = ours.evaluate(DATA, lambda batch: {"loss": mse_loss(model(batch[0]), batch[1])}, batch_size=4)
        logs["validated"] = means["loss"]
        schedule.step(logs["validated"])
        print(logs)


def only_printed(ours: Any, loader: Any, step: Step, optimizer: torch.optim.Optimizer) -> None:
    for _ in ours.epochs(2):
        losses = [step(x, y).item() for x, y in loader]
        print(f"{sum(losses) / len(losses):.3f}", optimizer.param_groups[0]["lr"])


@pytest.mark.parametrize("script", [another_item, only_printed])
def test_what_is_not(script: Script, capsys: pytest.CaptureFixture[str]) -> None:
    assert said(script, capsys) == []
