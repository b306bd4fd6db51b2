"""A script is told, also alone, of what its modules keep of their batches in a forward pass; not of batch norm, of what
does not depend on the batch, and of what each batch sets anew.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.ao import quantization
from torch.nn.functional import mse_loss, one_hot
from torch.utils.data import TensorDataset

from tests.equivalence.loops import BATCH, DATA, fresh, mlp, session
from tests.equivalence.rows import on_ranks

Kind = Callable[[], nn.Module]


def zeros(*size: int) -> torch.Tensor:
    return torch.zeros(*size, dtype=torch.float64)


class Model(nn.Module):
    """Its inputs go through ``before`` first."""

    def __init__(self, before: nn.Module) -> None:
        super().__init__()
        self.before, self.layers = before, fresh(mlp)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.layers(self.before(x))
        return y


class Centred(nn.Module):
    """As DINO's loss."""

    its: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("its", zeros(1, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        centred = x - self.its
        self.update(x)
        return centred

    @torch.no_grad()
    def update(self, x: torch.Tensor) -> None:
        mean = torch.sum(x, dim=0, keepdim=True) / len(x)
        self.its = self.its * 0.9 + mean * 0.1


class Queued(nn.Module):
    """As MoCo's keys."""

    its: torch.Tensor
    place: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("its", zeros(64, 3))
        self.register_buffer("place", torch.zeros(1, dtype=torch.long))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        place = int(self.place)
        count = x.shape[0]
        y = x + self.its.mean(0)
        self.its[place : place + count] = x.detach()
        self.place[0] = (place + count) % 60
        return y


def moving(old: torch.Tensor, new: torch.Tensor, decay: float) -> None:
    old.mul_(decay).add_(new, alpha=1 - decay)


class Codebook(nn.Module):
    """As VQ-VAE's, whose codes move in a function."""

    its: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("its", torch.eye(3, dtype=torch.float64))
        self.decay = 0.9

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        nearest = torch.cdist(x, self.its).argmin(1)
        chosen = one_hot(nearest, 3).double()
        with torch.no_grad():
            moving(self.its, chosen.T @ x, self.decay)
        return x + self.its[nearest]


class OfAnother(nn.Module):
    """Its part's method, which changes a parameter without gradient by another name."""

    def __init__(self) -> None:
        super().__init__()
        self.part = Part()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.part.follow(x.mean(0))
        y: torch.Tensor = x - self.part.its
        return y


class Part(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.its = nn.Parameter(zeros(3), requires_grad=False)

    def follow(self, mean: torch.Tensor) -> None:
        its = self.its.data
        its.lerp_(mean, 0.1)


class Plain(nn.Module):
    """A number that is no buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.its = 1.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        size = x.abs().mean().item()
        self.its = 0.9 * self.its + 0.1 * size
        return x / self.its


TOLD: dict[Kind, str] = {
    Centred: "the model's before.its",
    Queued: "the model's before.its",
    Codebook: "the model's before.its",
    OfAnother: "the model's before.part.its",
    Plain: "the model's before.its",
}


def trained(kind: Kind) -> None:
    model = Model(kind())
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.05)
    ours = session(model, optimizer)
    loader = ours.loader(DATA, global_batch_size=BATCH)
    for _ in ours.epochs(2):
        for x, y in loader:
            optimizer.zero_grad()
            loss = mse_loss(model(x), y)
            loss.backward()
            ours.step(loss)


def said(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return [line for line in capsys.readouterr().err.splitlines() if line.startswith("pilot: ")]


@pytest.mark.parametrize("kind", TOLD)
def test_what_comes_from_the_batch(kind: Kind, capsys: pytest.CaptureFixture[str]) -> None:
    trained(kind)
    lines = [line for line in said(capsys) if f"forward sets {TOLD[kind]} by its own batch, as" in line]
    assert len(lines) == 1


class Quantized(nn.Module):
    """torch's own observers of inputs, and of weights."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.layer(x)
        return y


@pytest.mark.filterwarnings("ignore")
def test_quantization_aware_training(capsys: pytest.CaptureFixture[str]) -> None:
    model = Quantized().train()
    model.qconfig = quantization.get_default_qat_qconfig("fbgemm")
    quantization.prepare_qat(model, inplace=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    ours = session(model, optimizer)
    loader = ours.loader(TensorDataset(*(one.float() for one in DATA.tensors)), global_batch_size=BATCH)
    for _ in ours.epochs(1):
        for x, y in loader:
            optimizer.zero_grad()
            loss = mse_loss(model(x), y)
            loss.backward()
            ours.step(loss)
    (line,) = [line for line in said(capsys) if "forward sets" in line]
    assert "the model's layer.activation_post_process.activation_post_process.max_val" in line
    assert "weight" not in line


class Lowered(nn.Module):
    """A temperature, and a count."""

    def __init__(self) -> None:
        super().__init__()
        self.temperature, self.count = 1.0, 0
        self.register_buffer("seen", zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.temperature *= 0.99
        self.count += len(x)
        self.get_buffer("seen").add_(1)
        return x * self.temperature


class OfWeights(nn.Module):
    """A vector that follows a weight, as spectral norm's."""

    its: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.eye(3, dtype=torch.float64))
        self.register_buffer("its", torch.ones(3, dtype=torch.float64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            self.its = nn.functional.normalize(self.weight.mv(self.its), dim=0)
        return x @ self.weight / self.weight.mv(self.its).norm()


class Shown(nn.Module):
    """Sets anew what it shows, and what it caches by a size."""

    def __init__(self) -> None:
        super().__init__()
        self.last: torch.Tensor | None = None
        self.mean, self.places = 0.0, zeros(1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.last = x.detach() ** 2
        self.mean = self.last.mean().item()
        if self.places.shape[0] < x.shape[0]:
            self.places = zeros(x.shape[0])
        return x + self.places[: x.shape[0], None]


class Normed(nn.BatchNorm1d):
    def __init__(self) -> None:
        super().__init__(3, dtype=torch.float64)


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("kind", [Lowered, OfWeights, Shown, Normed])
def test_what_does_not(kind: Kind, ranks: int, capsys: pytest.CaptureFixture[str]) -> None:
    on_ranks(lambda: trained(kind), ranks, [])
    assert not [line for line in said(capsys) if "forward sets" in line]
