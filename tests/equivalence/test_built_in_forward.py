"""A script is told of what its model makes in a batch if only a plain attribute says later that it has."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss

from tests.equivalence.loops import BATCH, DATA, GROWS_AND_SHRINKS, fresh, mlp, session
from tests.equivalence.rows import on_ranks


class Table:
    """What no state holds."""

    factor = 0.5


class Built(nn.Module):
    """It makes ``kind`` when it runs first."""

    def __init__(self, kind: str, *, again: bool = False) -> None:
        super().__init__()
        self.layers, self.act = fresh(mlp), nn.Identity()
        self.kind, self.is_built, self.again = kind, False, again
        self.table: Any = None
        self.batches = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.batches += 1
        if not self.is_built or self.again:
            self.is_built = True
            self.build(x)
        y: torch.Tensor = self.act(self.layers(x))
        return y * self.factor()

    def build(self, x: torch.Tensor) -> None:
        if self.kind == "object":
            self.table = Table()
        elif self.kind == "large":
            self.table = torch.full((2**18, 1), 0.5, dtype=x.dtype)
        elif self.kind == "long":
            self.table = [0.5] * 2000
        elif self.kind == "layer":
            self.act = nn.Tanh()
        else:
            self.table = torch.full((1, 1), 0.5, dtype=x.dtype)

    def factor(self) -> Any:
        if self.table is None:
            return 1.0
        return self.table.factor if isinstance(self.table, Table) else self.table[0]


def trained(model: nn.Module, epochs: int = 2) -> list[torch.Tensor]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    ours = session(model, optimizer)
    loader = ours.loader(DATA, global_batch_size=BATCH)
    for _ in ours.epochs(epochs):
        for x, y in loader:
            optimizer.zero_grad()
            loss = mse_loss(model(x), y)
            loss.backward()
            ours.step(loss)
    return [p.detach().clone() for p in model.parameters()]


def told(model: nn.Module, capsys: pytest.CaptureFixture[str]) -> list[str]:
    trained(model)
    return [line for line in capsys.readouterr().err.splitlines() if "is made in a batch" in line]


@pytest.mark.parametrize(
    ("kind", "name"), [("object", "table"), ("large", "table"), ("long", "table"), ("layer", "act")]
)
def test_what_an_attribute_says_is_made(kind: str, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    (line,) = told(nn.Sequential(Built(kind)), capsys)
    assert f"the model's 0.{name} is made in a batch, which the model's 0.is_built seems to say" in line


@pytest.mark.parametrize("kind", ["object", "large", "layer"])
def test_what_each_batch_makes_is_not_told_of(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert told(Built(kind, again=True), capsys) == []


def test_what_is_in_the_state_is_not_told_of(capsys: pytest.CaptureFixture[str]) -> None:
    assert told(Built("small"), capsys) == []


@pytest.mark.parametrize("kind", ["object", "layer"])
def test_a_model_that_runs_before_the_session(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    """As the script is told to do."""

    def script() -> list[torch.Tensor]:
        model = Built(kind)
        model(DATA.tensors[0][:1])
        return trained(model)

    expected = script()
    assert "is made in a batch" not in capsys.readouterr().err
    for values in on_ranks(script, 1, GROWS_AND_SHRINKS):
        torch.testing.assert_close(values, expected, rtol=1e-12, atol=1e-12)
