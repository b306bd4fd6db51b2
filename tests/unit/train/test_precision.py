"""Mixed and low precision: loss scaling around the sum over the group, autocast, models in bf16 and fp16."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import nn

from pilot.train.data.sampler import StepShare
from pilot.train.gradients.exchange import Exchange
from pilot.train.gradients.step_words import Words
from pilot.train.state.stepper import LearningRate
from pilot.train.state.training import Training

WORDS = Words.of(0, False, 0.0)


def test_a_skipped_step_is_behind_the_ledger_and_leaves_the_optimizer_and_the_schedule_as_they_were() -> None:
    model = nn.Linear(8, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    ours = torch.amp.GradScaler("cpu", init_scale=1024.0)
    training = Training(model, optimizer, scheduler, "step", LearningRate("none"), ours)
    before = copy.deepcopy(model.state_dict())
    ours.scale(model(torch.full((1, 8), torch.nan)).sum()).backward()
    training.apply(1, StepShare(0, 4, 4, ((0, 4),)))
    torch.testing.assert_close(dict(model.state_dict()), dict(before))
    assert not optimizer.state
    assert scheduler.last_epoch == 0
    assert (training.position.step, training.position.cursor) == (1, 4)
    assert ours.get_scale() == 512.0


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
