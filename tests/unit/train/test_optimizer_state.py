"""An optimizer's state, transferred as a block of bytes: it keeps the dtypes and strides of the giving rank."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from pilot.train.state.block import Packed, unpack
from pilot.train.state.stepper import LearningRate
from pilot.train.state.training import Training


def step(model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor) -> None:
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()


def newcomer(model: nn.Module, optimizer: torch.optim.Optimizer, other: Any) -> tuple[nn.Module, torch.optim.Optimizer]:
    """A rank that takes over everything from bytes."""
    theirs = copy.deepcopy(model)
    steps = other(theirs.parameters())
    block = Packed(Training(model, optimizer, None, None, LearningRate("none")).encoded()).to_bytes()
    Training(theirs, steps, None, None, LearningRate("none")).restore(unpack(block))
    return theirs, steps


def test_texts_and_arrays_in_a_parameters_state_stay_what_they_are() -> None:
    """torch's ``load_state_dict`` makes something else of them."""
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    given = {"kind": "dynamic", "map": np.linspace(-1.0, 1.0, 4), "shapes": [("a", 1)], "number": 1}
    optimizer.state[model.weight] = dict(given)
    theirs, steps = newcomer(model, optimizer, lambda parameters: torch.optim.SGD(parameters, lr=0.1))
    taken = steps.state[theirs.weight]
    assert {name: taken[name] for name in ("kind", "shapes", "number")} == {
        name: given[name] for name in ("kind", "shapes", "number")
    }
    assert np.array_equal(taken["map"], given["map"])


class Sharing(torch.optim.Optimizer):
    """Has its groups and states from an optimizer within it, as sharpness-aware minimization and Lookahead do."""

    def __init__(self, parameters: Any) -> None:
        self.inner = torch.optim.SGD(parameters, lr=0.1, momentum=0.9)
        super().__init__(self.inner.param_groups, {})
        self.param_groups, self.state = self.inner.param_groups, self.inner.state

    def step(self, _closure: Any = None) -> None:
        self.inner.step()


class Delegating(Sharing):
    """Loads a state into the inner one, and takes what that has then."""

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.inner.load_state_dict(state_dict)
        self.param_groups, self.state = self.inner.param_groups, self.inner.state


@pytest.mark.parametrize("kind", [Sharing, Delegating])
def test_variables_that_refer_to_the_groups_still_do_after_a_restore(kind: type[Sharing]) -> None:
    """A variable of the script's, or an optimizer within it."""
    torch.manual_seed(0)
    model, x = nn.Linear(3, 1), torch.randn(8, 3)
    optimizer = kind(model.parameters())
    step(model, optimizer, x)
    held: list[Any] = []

    def made(parameters: Any) -> Sharing:
        steps = kind(parameters)
        held.extend(steps.param_groups)
        return steps

    theirs, steps = newcomer(model, optimizer, made)
    assert held[0] is steps.param_groups[0]
    for group in (held[0], optimizer.param_groups[0]):
        group["lr"] = 0.2
    for _ in range(2):
        step(model, optimizer, x)
        step(theirs, steps, x)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), theirs.parameters(), strict=True))
    assert steps.state_dict()["state"].keys() == optimizer.state_dict()["state"].keys()


def test_a_schedule_that_continues_after_a_restore_causes_no_warning() -> None:
    """torch warns if its first step comes before the optimizer's, which others have made."""
    model, x = nn.Linear(3, 1), torch.randn(8, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step(model, optimizer, x)
    _, steps = newcomer(model, optimizer, lambda parameters: torch.optim.SGD(parameters, lr=0.1))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        torch.optim.lr_scheduler.ExponentialLR(steps, 0.5).step()
