"""A script is told if its loss depends on its steps, or on the learning rate, at an epoch's beginning."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn.functional import mse_loss
from torch.optim.lr_scheduler import LinearLR

from tests.equivalence.loops import BATCH, DATA, fresh, mlp, session

Step = Callable[[torch.Tensor], None]


class Steps:
    """Of something else."""

    steps = 4


@pytest.mark.parametrize("of_session", [True, False])
def test_steps_since_an_epochs_beginning(of_session: bool, capsys: pytest.CaptureFixture[str]) -> None:
    def script(ours: Any, _optimizer: Any, batches: Any, step: Step) -> None:
        counted = ours if of_session else Steps()
        for _ in ours.epochs(2):
            start = counted.steps
            shown = ours.steps
            for loss in batches():
                weight = (ours.steps - start) / 6
                step(loss * weight)
                assert ours.steps - shown <= 6

    lines = told(script, capsys, "session.steps at an epoch's beginning (start)")
    assert len(lines) == of_session


@pytest.mark.parametrize("schedule", ["step", "epoch"])
def test_the_learning_rate_of_an_epochs_beginning(schedule: str, capsys: pytest.CaptureFixture[str]) -> None:
    def script(ours: Any, optimizer: Any, batches: Any, step: Step) -> None:
        for _ in ours.epochs(2):
            shown = optimizer.param_groups[0]["lr"]
            weight = optimizer.param_groups[0]["lr"] / 0.05
            for loss in batches():
                step(loss * (1 + weight))
                assert shown

    lines = told(script, capsys, "the learning rate at an epoch's beginning (weight)", schedule)
    assert len(lines) == (schedule == "step")


def told(
    script: Callable[..., None], capsys: pytest.CaptureFixture[str], words: str, schedule: str = "step"
) -> list[str]:
    model = fresh(mlp)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    ours = session(model, optimizer, LinearLR(optimizer), schedule=schedule)
    loader = ours.loader(DATA, global_batch_size=BATCH)

    def step(loss: torch.Tensor) -> None:
        optimizer.zero_grad()
        loss.backward()
        ours.step(loss)

    script(ours, optimizer, lambda: (mse_loss(model(x), y) for x, y in loader), step)
    return [line for line in capsys.readouterr().err.splitlines() if words in line]
