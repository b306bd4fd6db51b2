"""What is trained in tests of rounds, in the same way by sessions (:mod:`tests.seldom.script`) and by the reference."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from pilot.submission.seldom import DiLoCo
from tests.seldom.reference import Node

WIDTH = 6
FAR = 1e4
"""Inputs are so large if a batch norm takes them."""

Values = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Case:
    """A training. ``norm``: the model has batch norms, of large and of small numbers; ``average``: an average of the
    model is tracked; ``scheduled``: a scheduler sets the learning rate.
    """

    every: int = 4
    samples: int = 240
    batch: int = 5
    epochs: int = 2
    outer_lr: float = 0.7
    momentum: float = 0.9
    nesterov: bool = True
    wire: str = "float32"
    inner: str = "fresh"
    dtype: str = "float64"
    norm: bool = False
    average: bool = False
    scheduled: bool = False

    @property
    def sync(self) -> DiLoCo:
        """How the nodes synchronise."""
        return DiLoCo(self.every, self.outer_lr, self.momentum, self.nesterov, self.wire, self.inner)

    def text(self) -> str:
        """Return the case as an argument of the script."""
        return json.dumps(asdict(self))

    @contextmanager
    def numbers(self) -> Iterator[None]:
        """Make tensors of the case's type."""
        before = torch.get_default_dtype()
        torch.set_default_dtype(getattr(torch, self.dtype))
        try:
            yield
        finally:
            torch.set_default_dtype(before)

    def data(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return inputs and targets of all samples."""
        generator = torch.Generator().manual_seed(3)
        x = torch.randn(self.samples, WIDTH, generator=generator)
        y = torch.sin(x @ torch.randn(WIDTH, 1, generator=generator))
        return (FAR * x if self.norm else x), y

    def node(self) -> Node:
        """Return a node as each one begins."""
        torch.manual_seed(0)
        norms = [nn.BatchNorm1d(width, affine=width == 8) if self.norm else nn.Identity() for width in (WIDTH, 8)]
        middle = nn.Linear(WIDTH, 8, bias=not self.norm)  # before a batch norm a bias has no gradient
        model = nn.Sequential(norms[0], middle, norms[1], nn.Tanh(), nn.Linear(8, 1))
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, _rate) if self.scheduled else None
        average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9)) if self.average else None
        x, y = self.data()

        def step(node: Node, places: list[int]) -> int:
            nn.functional.mse_loss(node.model(x[places]), y[places]).backward()
            return len(places)

        return Node(model, optimizer, step, scheduler, average)


def _rate(step: int) -> float:
    return min(1.0, (step + 1) / 20) / (1 + step / 50)


def values(node: Node) -> Values:
    """Return all numbers of its model and its average, by name, but not counts."""
    average = {} if node.average is None else node.average.state_dict()
    return model_values(node) | {f"average.{name}": tensor.clone() for name, tensor in average.items() if _real(tensor)}


def model_values(node: Node) -> Values:
    """Return those of its model alone."""
    return {name: tensor.clone() for name, tensor in node.model.state_dict().items() if _real(tensor)}


def _real(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point()
