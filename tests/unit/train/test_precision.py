"""Mixed and low precision: loss scaling around the sum over the group, autocast, models in bf16 and fp16."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import pilot.train
from pilot.train.data.sampler import StepShare
from pilot.train.gradients.exchange import Exchange
from pilot.train.gradients.step_words import Words
from pilot.train.state.lr import LearningRate
from pilot.train.state.training import Training

WORDS = Words.of(0, False, 0.0)


def scaler(**options: Any) -> torch.amp.GradScaler:
    return torch.amp.GradScaler("cpu", **({"init_scale": 1024.0, "growth_interval": 3} | options))


def regression() -> tuple[nn.Module, TensorDataset]:
    torch.manual_seed(0)
    x = torch.randn(24, 8)
    return nn.Linear(8, 1), TensorDataset(x, x.sum(1, keepdim=True))


@pytest.mark.parametrize("micro", [None, 2])
def test_it_does_what_torch_s_recipe_does(micro: int | None) -> None:
    model, data = regression()
    plain, recipe, ours = copy.deepcopy(model), scaler(), scaler()
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1)
    for start in range(0, 24, 4):
        x, y = data[start : start + 4]
        optimizer.zero_grad()
        factor = torch.inf if start == 8 else 1.0
        recipe.scale(factor * nn.functional.mse_loss(plain(x), y)).backward()
        recipe.unscale_(optimizer)
        nn.utils.clip_grad_norm_(plain.parameters(), 0.5)
        recipe.step(optimizer)
        recipe.update()
    session = pilot.train.session(model, torch.optim.SGD(model.parameters(), lr=0.1), scaler=ours)
    loader = session.loader(data, global_batch_size=4, micro_batch_size=micro, shuffle=False)
    for _ in session.epochs(1):
        for x, y in loader:
            model.zero_grad()
            factor = torch.inf if session.steps == 2 else 1.0
            ours.scale(factor * nn.functional.mse_loss(model(x), y)).backward()
            session.clip_grad_norm(0.5)
            session.step()
    assert session.steps == 6
    assert ours.state_dict() == recipe.state_dict()
    torch.testing.assert_close(dict(model.state_dict()), dict(plain.state_dict()))


def test_a_skipped_step_is_behind_the_ledger_and_leaves_the_optimizer_and_the_schedule_as_they_were() -> None:
    model, _ = regression()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    ours = scaler()
    training = Training(model, optimizer, scheduler, "step", LearningRate("none"), ours)
    before = copy.deepcopy(model.state_dict())
    ours.scale(model(torch.full((1, 8), torch.nan)).sum()).backward()
    training.apply(1, StepShare(0, 4, 4, ((0, 4),)))
    torch.testing.assert_close(dict(model.state_dict()), dict(before))
    assert not optimizer.state
    assert scheduler.last_epoch == 0
    assert (training.position.step, training.position.cursor) == (1, 4)
    assert ours.get_scale() == 512.0


def test_the_scaler_s_state_travels() -> None:
    first, second = (Training(*_parts(), "step", LearningRate("none"), scaler()) for _ in range(2))
    assert first.steppers.scalers[""] is not None
    assert second.steppers.scalers[""] is not None
    first.steppers.scalers[""].scale(torch.ones(()))  # it is created with the first loss
    first.steppers.scalers[""].update(new_scale=64.0)
    second.restore(first.capture())
    assert second.steppers.scalers[""].get_scale() == 64.0


def _parts() -> tuple[nn.Module, torch.optim.Optimizer, None]:
    model, _ = regression()
    return model, torch.optim.SGD(model.parameters(), lr=0.1), None


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_under_autocast_the_gradients_are_those_of_the_full_parameters(dtype: torch.dtype) -> None:
    model, data = regression()
    plain, (x, y) = copy.deepcopy(model), data[:]
    with torch.autocast("cpu", dtype=dtype):
        nn.functional.mse_loss(plain(x).float(), y).backward()
    exchange = Exchange(list(model.parameters()))
    exchange.begin(lambda: None)
    exchange.begin_batch(1.0, last=True)
    with torch.autocast("cpu", dtype=dtype):
        nn.functional.mse_loss(model(x).float(), y).backward()
    exchange.finish(WORDS)
    exchange.take()
    for ours, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        assert ours.grad is not None
        assert ours.grad.dtype is torch.float32
        torch.testing.assert_close(ours.grad, theirs.grad)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_gradients_of_narrow_models_are_summed_in_float32(dtype: torch.dtype) -> None:
    models = [nn.Linear(4, 1, bias=False, dtype=dtype) for _ in range(3)]
    exchanges = [Exchange(list(model.parameters())) for model in models]
    values = (256.0, 0.75, 0.75)  # if added in bf16, the small ones would be lost one by one
    for model, exchange, value in zip(models, exchanges, values, strict=True):
        exchange.begin(lambda: None)
        exchange.begin_batch(1.0, last=True)
        model(torch.full((1, 4), value, dtype=dtype)).sum().backward()
        exchange.finish(WORDS)
    _sum(exchanges)
    for model, exchange in zip(models, exchanges, strict=True):
        exchange.take()
        assert model.weight.grad is not None
        assert model.weight.grad.dtype is dtype
        assert model.weight.grad.tolist() == [torch.tensor([257.5] * 4, dtype=dtype).tolist()]


def _sum(exchanges: list[Exchange]) -> None:
    """What the rank processes do."""
    for part in exchanges[0].layout.parts:
        views = [np.frombuffer(e.arena.memory, part.dtype, part.count, part.offset) for e in exchanges]
        views[:] = [view for view in views if view.flags.writeable]
        summed = np.sum(views, axis=0)
        for view in views:
            view[:] = summed
