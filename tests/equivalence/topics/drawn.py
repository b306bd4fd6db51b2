"""Random numbers that a script draws in its loop: each rank its own for a loss, all ranks the same for a step."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import TensorDataset

from tests.equivalence.recipe import Recipe, square
from tests.equivalence.rows import Row, Topic


class Langevin(torch.optim.SGD):
    """Stochastic gradient Langevin dynamics: the optimizer adds its own noise."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        super().step(closure)
        for group in self.param_groups:
            for p in group["params"]:
                p.add_(torch.randn_like(p), alpha=0.01)


def noisy(model: nn.Module) -> None:
    for p in model.parameters():
        if p.grad is not None:
            p.grad.add_(torch.randn_like(p), alpha=0.01)


def decides_by_chance(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """As in stochastic depth."""
    return square(model, x) if random.random() < 0.5 else square(model, -x)


class Negatives(TensorDataset):
    """Samples that the script draws anew for each epoch, as recommenders do."""

    def sample(self, _epoch: int) -> None:
        drawn = random.random() + np.random.random() + torch.rand(self.tensors[0].shape, dtype=torch.float64)
        self.tensors = (drawn,)


ROWS: list[Row] = [
    Recipe(name="an optimizer that draws noise (SGLD)", optimizer=lambda p: Langevin(p, lr=0.05), real=True),
    Recipe(name="noise on the sums", on_sums=noisy, real=True),
    Recipe(name="a loss chosen by chance", loss=decides_by_chance, real=True, different="each rank draws its own"),
    Recipe(name="samples drawn at an epoch's beginning", dataset=Negatives, each_epoch=Negatives.sample, real=True),
]
TOPIC = Topic(67, "Random numbers in the loop", ROWS)
