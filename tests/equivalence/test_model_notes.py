"""What a script is told of its models' attributes: those that change and that no state holds."""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import mse_loss

from tests.equivalence.loops import BATCH, DATA, fresh, mlp, session


class Keeping(torch.nn.Sequential):
    """A model that keeps something in an attribute, and changes it in forward."""

    def __init__(self, kept: Any, change: Callable[[Any], Any]) -> None:
        super().__init__(mlp())
        self.kept, self.change = kept, change

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.change(self)
        return super().forward(x)


class Phase(enum.Enum):
    """Of training."""

    FIRST, LAST = range(2)


LARGE = 1 << 18


@pytest.mark.parametrize("tracked", [False, True])
@pytest.mark.parametrize(
    ("make", "change", "name"),
    [
        (lambda: np.random.RandomState(0), lambda model: model.kept.rand(), "kept"),
        (lambda: torch.Generator().manual_seed(0), lambda model: torch.rand(1, generator=model.kept), "kept"),
        (lambda: deque([0.0]), lambda model: model.kept.append(1.0), "kept"),
        (
            lambda: SimpleNamespace(counter=0),
            lambda model: setattr(model.kept, "counter", model.kept.counter + 1),
            "kept.counter",
        ),
        (lambda: Phase.FIRST, lambda model: setattr(model, "kept", Phase.LAST), "kept"),
        (lambda: [0.0] * LARGE, lambda model: model.kept.append(0.0), "kept"),
        (lambda: torch.zeros(LARGE, dtype=torch.float64), lambda model: model.kept.add_(1), "kept"),
        (list, lambda model: model.kept.extend([0.0] * 600), "kept"),
        (lambda: [0.0] * 2000, lambda model: model.kept.__setitem__(1500, model.kept[1500] + 1), "kept"),
        (dict, lambda model: model.kept.update(last=SimpleNamespace()), "kept"),
        (lambda: {object(): 0.0}, lambda model: model.kept.update(dict.fromkeys(model.kept, 1.0)), "kept['object 0']"),
    ],
)
def test_what_a_model_keeps_beside_its_state(
    make: Callable[[], Any],
    change: Callable[[Any], Any],
    name: str,
    tracked: bool,
    capsys: pytest.CaptureFixture[str],
) -> None:
    told, *_ = kept_by(make, change, capsys, tracked=tracked)
    assert f"change in its loop ({'tracked other' if tracked else 'model'}.{name})" in told


@pytest.mark.parametrize(
    ("make", "change"),
    [
        (lambda: 0, lambda model: setattr(model, "kept", model.kept + 1)),
        (dict, lambda model: model.kept.update({(1, 2): len(model.kept)})),
        (lambda: 0j, lambda model: setattr(model, "kept", model.kept + 1)),
        (lambda: bytearray(1), lambda model: model.kept.append(1)),
        (dict, lambda model: model.kept.setdefault(3, torch.zeros(LARGE))),
        (list, lambda model: setattr(model, "kept", [next(model.parameters()) * 2])),
        (dict, lambda model: model.kept.update(last=next(model.parameters()) * 2)),
        (lambda: None, lambda model: setattr(model, "kept", torch.zeros(LARGE))),
        (lambda: None, lambda model: setattr(model, "kept", next(model.parameters()).detach().view(-1))),
        (lambda: [fresh(mlp)], lambda _: None),
    ],
)
def test_what_a_model_has_in_its_state_or_leaves_for_its_loss_is_not_told_of(
    make: Callable[[], Any], change: Callable[[Any], Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert kept_by(make, change, capsys) == []


def kept_by(
    make: Callable[[], Any], change: Callable[[Any], Any], capsys: pytest.CaptureFixture[str], *, tracked: bool = False
) -> list[str]:
    """What a script with a :class:`Keeping` tells; ``tracked``: it is another one, and not what is trained."""
    keeping = Keeping(make(), change).double()
    model = fresh(mlp) if tracked else keeping
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    ours = session(model, optimizer)
    if tracked:
        ours.track("other", keeping)
    loader = ours.loader(DATA, global_batch_size=BATCH)
    for _ in ours.epochs(1):
        for x, y in loader:
            optimizer.zero_grad()
            loss = mse_loss(model(x), y) + keeping(x).detach().mean()
            loss.backward()
            ours.step(loss)
    return [line for line in capsys.readouterr().err.splitlines() if line.startswith("pilot: ")]
