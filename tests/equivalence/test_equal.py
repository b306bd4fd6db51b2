"""Rows of the class *equal*: on any number of ranks, and through changes of it, the plain loop's parameters."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

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
    "a parameter without elements": Row(WithEmpty),
}


@pytest.mark.parametrize("name", ROWS)
def test_equal_to_the_plain_loop(name: str) -> None:
    assert_equal(ROWS[name])
