"""A script is told, on one rank too, that it changes on some ranks only what the session keeps; an evaluation there is
refused.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn.functional import mse_loss
from torch.optim.swa_utils import AveragedModel

from pilot.core.errors import UserError
from tests.equivalence.loops import BATCH, DATA, fresh, mlp, session

Train = Callable[[torch.Tensor, torch.Tensor], float]
Script = Callable[[Any, Any, Train, Any, Any], None]


class Trainer:
    """As of a script with classes."""

    def __init__(self, session: Any, average: Any) -> None:
        self.session, self.average = session, average
        self.is_main = session.rank == 0

    def epoch(self, loader: Any, train: Train, model: Any) -> None:
        for x, y in loader:
            train(x, y)
            if self.is_main:
                self.average.update_parameters(model)


def an_average(ours: Any, loader: Any, train: Train, average: Any, model: Any) -> None:
    for _ in ours.epochs(1):
        for x, y in loader:
            train(x, y)
            if ours.rank == 0 and ours.steps > 1:
                average.update_parameters(model)


def by_a_variable(ours: Any, loader: Any, train: Train, average: Any, model: Any) -> None:
    is_main = ours.rank == 0
    for _ in ours.epochs(1):
        for x, y in loader:
            train(x, y)
            if not is_main:
                continue
            if ours.steps > 1:
                average.update_parameters(model)


def of_a_class(ours: Any, loader: Any, train: Train, average: Any, model: Any) -> None:
    trainer = Trainer(ours, average)
    for _ in ours.epochs(1):
        trainer.epoch(loader, train, model)


def the_best(ours: Any, loader: Any, train: Train, _average: Any, _model: Any) -> None:
    for _ in ours.epochs(1):
        for x, y in loader:
            loss = train(x, y)
        if not ours.rank:
            ours.state["best"] = min(ours.state.get("best", 9.0), loss)


def saved(ours: Any, loader: Any, train: Train, average: Any, model: Any) -> None:
    best = 9.0
    for _ in ours.epochs(1):
        for x, y in loader:
            loss = train(x, y)
            average.update_parameters(model)
            if ours.rank == 0:
                torch.save(average.state_dict(), io.BytesIO())
                average.eval()
                best = min(best, loss)
            if loss < best or ours.rank == 0:
                average.update_parameters(model)
                ours.state["steps"] = ours.steps
        ours.state["lowest"] = "first" if ours.rank == ours.size else "other"


def said(script: Script, capsys: pytest.CaptureFixture[str]) -> list[str]:
    model = fresh(mlp)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    ours, average = session(model, optimizer), AveragedModel(model)
    ours.track("average", average)
    loader = ours.loader(DATA, global_batch_size=BATCH)

    def train(x: torch.Tensor, y: torch.Tensor) -> float:
        optimizer.zero_grad()
        loss = mse_loss(model(x), y)
        loss.backward()
        ours.step(loss)
        return loss.item()

    script(ours, loader, train, average, model)
    return [line for line in capsys.readouterr().err.splitlines() if "on some ranks only" in line]


@pytest.mark.parametrize(
    ("script", "name"),
    [
        (an_average, "'average' (session.track)"),
        (by_a_variable, "'average' (session.track)"),
        (of_a_class, "'average' (session.track)"),
        (the_best, "session.state"),
    ],
)
def test_what_one_rank_changes_is_told_of_on_a_single_one(
    script: Script, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (line,) = said(script, capsys)
    assert "test_rank_only.py, line " in line
    assert f"the script changes {name} on some ranks only" in line


def test_what_all_ranks_change_and_what_one_saves_is_not_told_of(capsys: pytest.CaptureFixture[str]) -> None:
    assert said(saved, capsys) == []


def evaluates_at_the_end(ours: Any, loader: Any, train: Train, _average: Any, model: Any) -> None:
    for _ in ours.epochs(1):
        for x, y in loader:
            train(x, y)
        if ours.rank == 0:
            ours.evaluate(DATA, lambda batch: {"loss": mse_loss(model(batch[0]), batch[1])})


def evaluates_between_steps(ours: Any, loader: Any, train: Train, _average: Any, model: Any) -> None:
    def validate() -> float:
        means: dict[str, float] = ours.evaluate(DATA, lambda batch: {"loss": mse_loss(model(batch[0]), batch[1])})
        return means["loss"]

    main = ours.rank == 0
    for _ in ours.epochs(1):
        for x, y in loader:
            train(x, y)
            if ours.steps % 2 == 0 and main:
                validate()


def goes_on_on_others(ours: Any, loader: Any, train: Train, _average: Any, model: Any) -> None:
    for _ in ours.epochs(1):
        for x, y in loader:
            train(x, y)
            if ours.rank != 0:
                continue
            ours.evaluate(DATA, lambda batch: {"loss": mse_loss(model(batch[0]), batch[1])})


@pytest.mark.parametrize("script", [evaluates_at_the_end, evaluates_between_steps, goes_on_on_others])
def test_an_evaluation_on_one_rank_is_refused_on_a_single_one(
    script: Script, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(UserError, match=r"session\.evaluate is called on some ranks only"):
        said(script, capsys)


def test_one_on_all_ranks_of_which_one_tells_is_not_refused(capsys: pytest.CaptureFixture[str]) -> None:
    def script(ours: Any, loader: Any, train: Train, _average: Any, model: Any) -> None:
        for _ in ours.epochs(1):
            for x, y in loader:
                train(x, y)
                if ours.rank == 0 or ours.steps % 2 == 0:
                    print(ours.steps)
                means = ours.evaluate(DATA, lambda batch: {"loss": mse_loss(model(batch[0]), batch[1])})
                if ours.rank == 0:
                    print(means)

    assert said(script, capsys) == []
