"""Layers that keep state, draw, use the complete batch, or compute their weights."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.utils import parametrizations

from tests.equivalence.recipe import Recipe
from tests.equivalence.rows import SAMPLES, Row, Topic

SEQUENCE = (5, 3)


def weight_norm() -> nn.Module:
    return nn.Sequential(parametrizations.weight_norm(nn.Linear(3, 5)), nn.Tanh(), nn.Linear(5, 1))


def normed(norm: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), norm, nn.Tanh(), nn.Linear(4, 1))


class Recurrent(nn.Module):
    def __init__(self, kind: type[nn.Module]) -> None:
        super().__init__()
        self.cell, self.last = kind(3, 4, batch_first=True), nn.Linear(4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.cell(x)[0][:, -1])


class Embeds(nn.Module):
    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.table, self.last = nn.Embedding(7, 3, **options), nn.Linear(3, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.table(x).mean(1))


def tokens() -> torch.Tensor:
    return torch.randint(0, 7, (SAMPLES, 4), generator=torch.Generator().manual_seed(1))


def dropout() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.5), nn.Linear(8, 1))


def routes(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """A layer that only some samples reach, like an expert."""
    taken = x[:, 0] > 0.5
    output = model[2](torch.tanh(model[0](x)))
    if taken.any():
        output = output.index_add(0, taken.nonzero()[:, 0], model[3](x[taken]))
    return (output - 0.5).square().mean()


def with_expert() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 1), nn.Linear(3, 1))


ROWS: list[Row] = [
    Recipe(name="weight norm (parametrizations)", model=weight_norm),
    Recipe(name="batch norm in evaluation mode", model=lambda: normed(nn.BatchNorm1d(4).eval())),
    Recipe(name="LSTM", model=lambda: Recurrent(nn.LSTM), features=SEQUENCE),
    Recipe(name="Embedding", model=Embeds, data=tokens),
    Recipe(name="an expert that some samples take", model=with_expert, loss=routes),
    Recipe(name="dropout", model=dropout, real=True, core=True, different="each rank draws its own"),
]
TOPIC = Topic(30, "Layers", ROWS)
