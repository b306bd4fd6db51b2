"""A script is told that its model sets parameters from the first batch, which ranks that begin together do differently;
and what to do instead trains as one undisturbed process.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss

from pilot.core.errors import PilotError
from tests.equivalence.loops import BATCH, DATA, fresh, session
from tests.equivalence.rows import on_ranks


class ActNorm(nn.Module):
    """With a shift and a scale that the first batch gives."""

    def __init__(self) -> None:
        super().__init__()
        self.shift, self.scale = nn.Parameter(torch.zeros(3)), nn.Parameter(torch.ones(3))
        self.out = nn.Linear(3, 1)
        self.register_buffer("is_set", torch.tensor(False))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.get_buffer("is_set"):
            self.shift.data.copy_(-x.mean(0))
            self.scale.data.copy_(1 / (x.std(0) + 1e-6))
            self.get_buffer("is_set").fill_(1)
        output: torch.Tensor = self.out((x + self.shift) * self.scale)
        return output


class Clamped(nn.Linear):
    """Its weights are clamped, all of them or some, and by the second step none."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.weight.data.clamp_(-0.3, 0.3)
        return super().forward(x)


class Normalized(nn.Linear):
    """In each step."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.weight.data.div_(2 * self.weight.data.norm())
        return super().forward(x)


def clamped() -> nn.Module:
    return Clamped(3, 1)


def all_clamped() -> nn.Module:
    """From the first step on, as a critic's small layers (Wasserstein GANs)."""
    layer = Clamped(3, 1)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[-0.5, 0.5, -0.4]]))
    return layer


def normalized() -> nn.Module:
    return Normalized(3, 1)


def trained(make: Callable[[], nn.Module], *, before: bool = False) -> list[torch.Tensor]:
    model = fresh(make)
    if before:
        with torch.no_grad():
            model(DATA.tensors[0])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    ours = session(model, optimizer)
    loader = ours.loader(DATA, global_batch_size=BATCH)
    for _ in ours.epochs(2):
        for x, y in loader:
            optimizer.zero_grad()
            loss = mse_loss(model(x), y)
            loss.backward()
            ours.step(loss)
    return [p.detach().clone() for p in model.parameters()]


def test_told_alone_of_what_stops_two_ranks(capsys: pytest.CaptureFixture[str]) -> None:
    trained(ActNorm)
    (line,) = capsys.readouterr().err.splitlines()
    assert "test_set_at_first.py, line " in line
    assert "sets parameters in its first step, and not in the second (shift, scale)" in line
    with pytest.raises(PilotError, match=r"shift \(and 1 more\) has differed"):
        on_ranks(lambda: trained(ActNorm), 2, [])


def test_a_batch_before_the_session(capsys: pytest.CaptureFixture[str]) -> None:
    expected = trained(ActNorm, before=True)
    assert capsys.readouterr().err == ""
    for values in on_ranks(lambda: trained(ActNorm, before=True), 2, []):
        torch.testing.assert_close(values, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("make", [clamped, all_clamped, normalized])
def test_what_a_model_does_to_its_weights_is_not_told_of(
    make: Callable[[], nn.Module], capsys: pytest.CaptureFixture[str]
) -> None:
    trained(make)
    assert capsys.readouterr().err == ""
