"""A validation pass: the mean over the whole dataset, however the ranks split it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import pilot.train
from pilot.core.errors import UserError
from pilot.train.data.loader import DatasetBatches
from pilot.train.evaluation import Evaluation
from pilot.train.ranks.collectives import Collectives
from tests.unit.train.twin import Twin, together

x = torch.linspace(-1, 1, 333, dtype=torch.float64).unsqueeze(1)


def mean_square(batch: list[torch.Tensor]) -> dict[str, torch.Tensor]:
    return {"square": batch[0].square().mean(), "positive": (batch[0] > 0).double().mean()}


@settings(max_examples=25, deadline=None)
@given(count=st.integers(1, 4), length=st.integers(1, 333), batch_size=st.integers(1, 40))
def test_it_is_the_mean_over_all_samples(count: int, length: int, batch_size: int) -> None:
    data = TensorDataset(x[:length])

    def script(twin: Twin) -> dict[str, float]:
        evaluation = Evaluation(nn.Identity(), data, mean_square, batch_size, {})
        return evaluation.run(Collectives(twin, twin.training))

    results = together(count, script)
    expected = {name: value.item() for name, value in mean_square([x[:length]]).items()}
    assert results[0] == pytest.approx(expected, rel=1e-12)
    assert all(result == results[0] for result in results)


def made() -> tuple[nn.Module, pilot.train.Session, TensorDataset, DatasetBatches]:
    model = nn.Sequential(nn.Linear(1, 2), nn.BatchNorm1d(2), nn.Linear(2, 1))
    data = TensorDataset(x.float())
    session = pilot.train.session(model, torch.optim.SGD(model.parameters(), lr=0.1))
    return model, session, data, session.loader(data, global_batch_size=333)


@pytest.mark.parametrize("workers", [0, 1])
def test_the_model_is_in_evaluation_mode_and_back_in_its_own_afterwards(workers: int) -> None:
    model, session, data, _ = made()
    model[1].eval()  # a batch norm frozen by its script

    def look(batch: list[torch.Tensor]) -> dict[str, float]:
        assert not torch.is_grad_enabled()
        return {"training": float(any(module.training for module in model.modules())), "size": len(batch[0])}

    assert session.evaluate(data, look, batch_size=333, num_workers=workers) == {"training": 0.0, "size": 333.0}
    assert [model.training, model[0].training, model[1].training] == [True, True, False]


class Adapted(nn.Linear):
    """Adds its adapter to its weight for an evaluation, as LoRA's layers do."""

    def __init__(self) -> None:
        super().__init__(1, 1)
        self.merged = False

    def train(self, mode: bool = True) -> Adapted:
        self.merged = not mode
        return super().train(mode)


def test_a_module_that_does_more_in_train_is_told_that_the_evaluation_is_over() -> None:
    model = nn.Sequential(Adapted(), nn.Sequential(Adapted()).eval())
    session = pilot.train.session(model, torch.optim.SGD(model.parameters(), lr=0.1))
    session.loader(TensorDataset(x), global_batch_size=333)
    session.evaluate(TensorDataset(x), lambda _: {"merged": model[0].merged}, batch_size=333)
    assert [model[0].merged, model[1][0].merged, model[1].training] == [False, True, False]


def test_it_is_for_between_two_steps_and_for_data() -> None:
    model, session, data, loader = made()
    for _ in session.epochs(1):
        for (batch,) in loader:
            model.zero_grad()
            model(batch).sum().backward()
            with pytest.raises(UserError, match="between two steps"):
                session.evaluate(data, mean_square)
            session.step()
            assert session.evaluate(data, mean_square)["square"] == pytest.approx(1 / 3, rel=0.01)
    with pytest.raises(UserError, match="cannot be evaluated"):
        session.evaluate(TensorDataset(x[:0]), mean_square)


@pytest.mark.parametrize(
    ("function", "options", "line"),
    [
        (lambda _: 1.0, {}, "must return a dict of means by name, got float"),
        (lambda _: {"a": "x"}, {}, "'a' must be a number, got str"),
        (lambda batch: {"a": batch[0].flatten()}, {}, "'a' must be a number, got Tensor"),
        (lambda batch: {"a" if len(batch[0]) == 200 else "b": 1.0}, {}, "'a' for one batch and 'b' for"),
        (mean_square, {"shuffle": True}, "session.evaluate divides the dataset in its order"),
    ],
)
def test_what_has_no_mean_is_refused(function: Any, options: dict[str, Any], line: str) -> None:
    _, session, data, _ = made()
    with pytest.raises(UserError, match=line):
        session.evaluate(data, function, batch_size=200, **options)


def test_a_loader_is_no_dataset() -> None:
    _, session, data, _ = made()
    with pytest.raises(UserError, match="not a DataLoader"):
        session.evaluate(DataLoader(data, batch_size=4), mean_square)
