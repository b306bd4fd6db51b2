"""A validation pass: the mean over the dataset, however the ranks split it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from pilot.core.errors import UserError
from tests.equivalence.loops import Loop
from tests.equivalence.rows import on_ranks

x = torch.linspace(-1, 1, 333, dtype=torch.float64).unsqueeze(1)
DATA = TensorDataset(x)


def mean_square(batch: list[torch.Tensor]) -> dict[str, torch.Tensor]:
    return {"square": batch[0].square().mean(), "positive": (batch[0] > 0).double().mean()}


@settings(max_examples=25, deadline=None)
@given(count=st.integers(1, 4), length=st.integers(1, 333), batch_size=st.integers(1, 40))
def test_it_is_the_mean_over_all_samples(count: int, length: int, batch_size: int) -> None:
    def script() -> Any:
        loop = Loop(model=nn.Linear(1, 1).double(), data=DATA)
        for _ in loop.session.epochs(1):
            result = loop.session.evaluate(TensorDataset(x[:length]), mean_square, batch_size=batch_size)
            loop.session.stop()
            break
        return result

    results = on_ranks(script, count, [])
    expected = {name: value.item() for name, value in mean_square([x[:length]]).items()}
    assert results[0] == pytest.approx(expected, rel=1e-12)
    assert results == [results[0]] * count


def normed() -> Loop:
    model = nn.Sequential(nn.Linear(1, 2), nn.BatchNorm1d(2), nn.Linear(2, 1)).double()
    return Loop(model=model, data=DATA, loader={"global_batch_size": 333})


@pytest.mark.parametrize("workers", [0, 1])
def test_the_model_is_in_evaluation_mode_and_back_in_its_own_afterwards(workers: int) -> None:
    loop = normed()
    model = loop.model
    model[1].eval()  # a batch norm frozen by its script

    def measure(batch: list[torch.Tensor]) -> dict[str, float]:
        assert not torch.is_grad_enabled()
        return {"training": float(any(module.training for module in model.modules())), "size": len(batch[0])}

    means = loop.session.evaluate(DATA, measure, batch_size=333, num_workers=workers)
    assert means == {"training": 0.0, "size": 333.0}
    assert [model.training, model[0].training, model[1].training] == [True, True, False]


class Adapted(nn.Linear):
    """Adds its adapter to its weight for an evaluation, as LoRA's layers do."""

    def __init__(self) -> None:
        super().__init__(1, 1)
        self.merged = False

    def train(self, mode: bool = True) -> Adapted:
        self.merged = not mode
        return super().train(mode)


def test_a_module_with_a_train_of_its_own_gets_the_end_of_the_evaluation() -> None:
    model = nn.Sequential(Adapted(), nn.Sequential(Adapted()).eval())
    loop = Loop(model=model, data=DATA)
    loop.session.evaluate(DATA, lambda _: {"merged": model[0].merged}, batch_size=333)
    assert [model[0].merged, model[1][0].merged, model[1].training] == [False, True, False]


def test_it_is_for_between_two_steps_and_for_data() -> None:
    loop = normed()
    for batch in loop.batches():
        with pytest.raises(UserError, match="between two steps"):
            loop.session.evaluate(DATA, mean_square)
        loop.step(*batch)
        assert loop.session.evaluate(DATA, mean_square)["square"] == pytest.approx(1 / 3, rel=0.01)
    for data, line in [(TensorDataset(x[:0]), "cannot be evaluated"), (DataLoader(DATA), "not a DataLoader")]:
        with pytest.raises(UserError, match=line):
            loop.session.evaluate(data, mean_square)


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
def test_a_function_without_a_mean_is_refused(function: Any, options: dict[str, Any], line: str) -> None:
    with pytest.raises(UserError, match=line):
        normed().session.evaluate(DATA, function, batch_size=200, **options)
