"""Parameters of every kind."""

from __future__ import annotations

import torch
from torch import nn

from tests.equivalence.recipe import Recipe, mlp
from tests.equivalence.rows import Row, Topic
from tests.equivalence.topics.optimizers import made

FUSED = made(torch.optim.AdamW, lr=0.01, fused=True)
IMAGE = (2, 4, 4)


def channels_last() -> nn.Module:
    model = nn.Sequential(nn.Conv2d(2, 3, 3), nn.Tanh(), nn.Conv2d(3, 1, 2))
    return model.to(memory_format=torch.channels_last)


class Partly(nn.Module):
    """Parameters that are never used, only in some batches, or for some samples; one has no elements, as in an
    adapter of rank 0.
    """

    def __init__(self) -> None:
        super().__init__()
        self.used, self.never, self.sometimes = nn.Linear(3, 1), nn.Linear(2, 2), nn.Parameter(torch.ones(3))
        self.empty = nn.Parameter(torch.zeros(0, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        chosen = x[:, 0] > 1
        shift = torch.zeros_like(x)
        if chosen.any():
            shift[chosen] = self.sometimes
        output = self.used(x + shift)
        return output + (x @ self.empty.t()).sum() if x[0, 0] > 0 else output


class Scaled(nn.Module):
    """A scalar parameter, one that is not contiguous in memory, and one that is transposed."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.weight = nn.Parameter(torch.randn(3, 8)[:, ::2])
        self.transposed = nn.Parameter(torch.randn(2, 4).t())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x @ self.weight @ self.transposed) * self.scale


def tied() -> nn.Module:
    model = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3))
    model[2].weight = model[0].weight
    return model


def with_frozen() -> nn.Module:
    model = mlp()
    model[0].requires_grad_(False)
    return model


class Complex(nn.Module):
    """Complex weights, one of them transposed, between real ones."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 3, dtype=torch.float64)
        self.phase = nn.Parameter(torch.randn(3, 4, dtype=torch.complex128))
        self.turned = nn.Parameter(torch.randn(2, 4, dtype=torch.complex128).t())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.first(x).to(torch.complex128) @ self.phase @ self.turned).abs()


class Mixed(nn.Module):
    """float64, float32 and bfloat16."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(3, 4, dtype=torch.float64), nn.Linear(4, 1)
        self.scale = nn.Parameter(torch.ones(4, dtype=torch.bfloat16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.first(x).float() * self.scale)


class Large(nn.Module):
    """Gradients that span several buckets."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(3 if i == 0 else 500, 500) for i in range(4))
        self.last = nn.Linear(500, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return self.last(x)


def shared_storage() -> nn.Module:
    """Two parameters in one block of memory, like an LSTM's flattened weights."""
    model = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3))
    block = torch.randn(2, 3, 3, dtype=torch.float64)
    model.to(torch.float64)
    model[0].weight.data, model[2].weight.data = block[0], block[1]
    return model


ROWS: list[Row] = [
    Recipe(name="channels_last, fused AdamW", model=channels_last, optimizer=FUSED, features=IMAGE, core=True),
    Recipe(name="a single number, a weight with gaps in memory, a transposed one", model=Scaled, optimizer=FUSED),
    Recipe(name="tied", model=tied),
    Recipe(name="complex", model=Complex, dtype=None, core=True),
    Recipe(name="float64, float32 and bfloat16 in one model", model=Mixed, dtype=None, tolerance=0.05),
    Recipe(name="several buckets", model=Large, optimizer=made(torch.optim.Adam, lr=0.001), tolerance=1e-9),
    Recipe(name="two in one block of memory", model=shared_storage),
    Recipe(name="frozen", model=with_frozen),
    Recipe(name="unused, without elements, and used in some batches only", model=Partly),
]
TOPIC = Topic(20, "Parameters", ROWS)
