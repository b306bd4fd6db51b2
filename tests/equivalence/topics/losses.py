"""Losses: the gradient is the ranks' mean, weighted by their samples. A loss that is no mean over samples differs."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.functional import cross_entropy, normalize

from tests.equivalence.recipe import Recipe
from tests.equivalence.rows import Row, Topic


def classifier() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 3))


def classes(x: torch.Tensor) -> torch.Tensor:
    return (x[:, 0] > 0).long() + (x[:, 1] > 0).long()


def ignores(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return cross_entropy(model(x), classes(x).where(x[:, 2] > -0.5, -100))


def sums(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return 0.1 * (model(x) - 0.5).square().sum()


def contrasts(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Each sample against the others in its batch."""
    z = normalize(model(x), dim=1)
    return cross_entropy(z @ z.t(), torch.arange(len(x), device=x.device))


def with_weight_penalty(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return (model(x) - 0.5).square().mean() + 0.01 * sum(p.square().sum() for p in model.parameters())


NO_MEAN = "not a mean over samples: each rank's counts by its samples"
ROWS: list[Row] = [
    Recipe(name="a penalty on weights in the loss", loss=with_weight_penalty),
    Recipe(name="a loss that is a sum", loss=sums, different=NO_MEAN),
    Recipe(name="cross entropy with ignore_index", model=classifier, loss=ignores, different=NO_MEAN),
    Recipe(
        name="an in-batch contrastive loss",
        model=classifier,
        loss=contrasts,
        different="each rank contrasts its own batch",
    ),
]
TOPIC = Topic(40, "Losses", ROWS)
