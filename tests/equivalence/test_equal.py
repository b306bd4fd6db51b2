"""Rows of the class *equal*: on any number of ranks, and through changes of it, the plain loop's parameters."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import pilot.train
from tests.equivalence.rows import Row, assert_equal


def fused(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=0.01, fused=True)


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 1))


def channels_last() -> nn.Module:
    model = nn.Sequential(nn.Conv2d(2, 3, 3), nn.Tanh(), nn.Conv2d(3, 1, 2))
    return model.to(memory_format=torch.channels_last)


class WithEmpty(nn.Module):
    """A parameter without elements, as of an adapter of rank 0."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.empty = nn.Linear(3, 1), nn.Parameter(torch.zeros(0, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.used(x) + (x @ self.empty.t()).sum()


def tied() -> nn.Module:
    model = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3))
    model[2].weight = model[0].weight
    return model


def transposed() -> nn.Module:
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    model[0].weight = nn.Parameter(model[0].weight.detach().t().contiguous().t())
    return model


def with_frozen() -> nn.Module:
    model = mlp()
    model[0].requires_grad_(False)
    return model


def clip_the_sums(session: pilot.train.Session, model: nn.Module) -> None:
    if session.sum():
        nn.utils.clip_grad_norm_(model.parameters(), 0.05)


def clip(model: nn.Module) -> None:
    nn.utils.clip_grad_norm_(model.parameters(), 0.05)


def zeroes_in_place(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    model.zero_grad(set_to_none=False)
    return (model(x) - 0.5).square().mean()


def with_penalty(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    inputs = x.detach().requires_grad_()
    loss = (model(inputs) - 0.5).square().mean()
    (slope,) = torch.autograd.grad(model(inputs).sum(), inputs, create_graph=True)
    return loss + slope.square().sum(1).mean()


def checkpointed(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return (checkpoint(model, x, use_reentrant=False) - 0.5).square().mean()


def steps_a_perturbation(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """An optimizer of something that lives for one step only."""
    shift = torch.zeros_like(x, requires_grad=True)
    attack = torch.optim.SGD([shift], lr=0.1)
    (shift.grad,) = torch.autograd.grad(-model(x + shift).square().mean() * len(x), shift)
    attack.step()
    return (model(x + shift.detach()) - 0.5).square().mean()


IMAGE = (2, 4, 4)
ROWS = {
    "sgd": Row(mlp),
    "adam": Row(mlp, lambda p: torch.optim.Adam(p, lr=0.01)),
    "fused adamw": Row(mlp, fused),
    "micro-batches": Row(mlp, micro=1),
    "channels_last": Row(channels_last, features=IMAGE),
    "channels_last, fused adamw": Row(channels_last, fused, IMAGE),
    "channels_last, fused adamw, micro-batches": Row(channels_last, fused, IMAGE, micro=1),
    "transposed weight, fused adamw": Row(transposed, fused),
    "tied": Row(tied),
    "frozen": Row(with_frozen),
    "clipped by the script": Row(mlp, before_step=clip_the_sums, plain_before_step=clip),
    "gradients clipped by the session": Row(
        mlp, before_step=lambda s, _: s.clip_grad_norm(0.05), plain_before_step=clip
    ),
    "clipped by the script, micro-batches": Row(mlp, micro=1, before_step=clip_the_sums, plain_before_step=clip),
    "zero_grad(set_to_none=False)": Row(mlp, loss=zeroes_in_place),
    "gradient penalty": Row(mlp, loss=with_penalty),
    "activation checkpointing": Row(mlp, loss=checkpointed),
    "an attack's own optimizer": Row(mlp, loss=steps_a_perturbation),
    "a parameter without elements": Row(WithEmpty),
}


@pytest.mark.parametrize("name", ROWS)
def test_equal_to_the_plain_loop(name: str) -> None:
    assert_equal(ROWS[name])
