"""A script is told of what it computes with the model at an epoch's beginning and keeps for its steps in objects: its
dataset, parts of its model, a trainer; see :mod:`tests.equivalence.test_epoch_outputs`.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss
from torch.utils.data import Subset, TensorDataset

from tests.equivalence.loops import DATA, fresh, mlp
from tests.equivalence.rows import SAMPLES
from tests.equivalence.test_epoch_outputs import Labelled, Step, X, Y, features, told


@pytest.mark.parametrize("of_tensors", [False, True])
def test_labels_of_the_dataset(of_tensors: bool, capsys: pytest.CaptureFixture[str]) -> None:
    dataset: Any = TensorDataset(X, torch.zeros_like(Y)) if of_tensors else Labelled()

    def script(ours: Any, model: nn.Module, loader: Any, step: Step) -> None:
        for _ in ours.epochs(2):
            if of_tensors:
                dataset.tensors[1].copy_(features(model))
            else:
                dataset.labels = list(features(model))
            for x, y in loader:
                step(mse_loss(model(x), y))

    (line,) = told(script, capsys, dataset)
    assert ("dataset.tensors[1]" if of_tensors else "dataset.labels[0]") in line


class Levels(TensorDataset):
    """Samples by a level, which gets harder."""

    def __init__(self, *tensors: torch.Tensor) -> None:
        super().__init__(*tensors)
        self.level, self.hard, self.epoch = 1.0, False, 0

    def __getitem__(self, index: Any) -> Any:
        x, y = super().__getitem__(index)
        return x * self.level, y


@pytest.mark.parametrize("name", ["data.level", "data.hard", ""])
def test_numbers_of_the_dataset(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    data = Levels(*DATA.tensors)

    def by_a_number(ours: Any, model: nn.Module, loader: Any, step: Step) -> None:
        for _ in ours.epochs(3):
            loss = mse_loss(model(DATA.tensors[0]), DATA.tensors[1]).item()
            data.level = 1.0 + loss
            for x, y in loader:
                step(mse_loss(model(x), y))

    def by_a_flag(ours: Any, model: nn.Module, loader: Any, step: Step) -> None:
        for _ in ours.epochs(3):
            measured = ours.evaluate(DATA, lambda batch: {"loss": mse_loss(model(batch[0]), batch[1])})
            if measured["loss"] < 99.0:
                data.hard = True
            for x, y in loader:
                step(mse_loss(model(x), y))

    def by_the_epoch(ours: Any, model: nn.Module, loader: Any, step: Step) -> None:
        for epoch in ours.epochs(3):
            print(mse_loss(model(DATA.tensors[0]), DATA.tensors[1]).item())
            data.epoch, data.level = epoch, 1.0 / (1 + epoch)
            for x, y in loader:
                step(mse_loss(model(x), y))

    scripts = {"data.level": by_a_number, "data.hard": by_a_flag, "": by_the_epoch}
    lines = told(scripts[name], capsys, data)
    assert [f"computes there ({name}) what its steps use" in line for line in lines] == [True] * bool(name)


class Phased(nn.Module):
    """One layer or two, by a plain attribute of its part."""

    def __init__(self) -> None:
        super().__init__()
        self.layers, self.part = fresh(mlp), Part()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.layers(x)
        return 0.5 * y if self.part.is_late() else y


class Part(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.late, self.best = False, 99.0

    def is_late(self) -> bool:
        return self.late


@pytest.mark.parametrize("is_read", [False, True])
def test_flags_of_the_model(is_read: bool, capsys: pytest.CaptureFixture[str]) -> None:
    """Those that it reads."""

    def sets_a_flag(ours: Any, model: Any, loader: Any, step: Step) -> None:
        for _ in ours.epochs(3):
            if mse_loss(model(DATA.tensors[0]), DATA.tensors[1]).item() < 99.0:
                model.part.late = True
            for x, y in loader:
                step(mse_loss(model(x), y))

    def sets_a_record(ours: Any, model: Any, loader: Any, step: Step) -> None:
        for _ in ours.epochs(3):
            model.part.best = mse_loss(model(DATA.tensors[0]), DATA.tensors[1]).item()
            for x, y in loader:
                step(mse_loss(model(x), y))

    lines = told(sets_a_flag if is_read else sets_a_record, capsys, model=Phased())
    assert ["computes there (model.part.late) what its steps use" in line for line in lines] == [True] * is_read


def test_a_flag_by_the_epoch(capsys: pytest.CaptureFixture[str]) -> None:
    """Not by what the model is worth."""

    def script(ours: Any, model: Any, loader: Any, step: Step) -> None:
        for epoch in ours.epochs(3):
            print(mse_loss(model(DATA.tensors[0]), DATA.tensors[1]).item())
            if epoch > 0:
                model.part.late = True
            for x, y in loader:
                step(mse_loss(model(x), y))

    assert told(script, capsys, model=Phased()) == []


@pytest.mark.parametrize("by_model", [False, True])
def test_indices_of_a_subset(by_model: bool, capsys: pytest.CaptureFixture[str]) -> None:
    """As in active learning."""
    dataset = Subset(DATA, list(range(SAMPLES // 2)))

    def script(ours: Any, model: nn.Module, loader: Any, step: Step) -> None:
        for _ in ours.epochs(2):
            found = features(model) if by_model else torch.rand(SAMPLES, 1)
            dataset.indices = found.flatten().argsort()[: SAMPLES // 2].tolist()
            for x, y in loader:
                step(mse_loss(model(x), y))

    lines = told(script, capsys, dataset)
    assert ["dataset.indices[0], " in line for line in lines] == [True] * by_model


class Curriculum:
    """Samples with small losses count; a trainer's number."""

    threshold = shown = 0.0

    def fit(self, ours: Any, model: nn.Module, loader: Any, step: Step) -> None:
        for _ in ours.epochs(2):
            self.threshold = mse_loss(model(X), Y).item()
            for x, y in loader:
                step(self.loss(model, x, y))

    def report(self, ours: Any, model: nn.Module, loader: Any, step: Step) -> None:
        for _ in ours.epochs(2):
            self.shown = mse_loss(model(X), Y).item()
            for x, y in loader:
                step(self.loss(model, x, y))
                print(self.shown)

    def loss(self, model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return mse_loss(model(x), y, reduction="none").clamp(min=self.threshold).mean()


def test_a_number_of_a_trainer(capsys: pytest.CaptureFixture[str]) -> None:
    (line,) = told(Curriculum().fit, capsys)
    assert "runs the model at an epoch's beginning, and computes there (self.threshold) what its steps use" in line


def test_a_number_for_a_report(capsys: pytest.CaptureFixture[str]) -> None:
    assert told(Curriculum().report, capsys) == []
