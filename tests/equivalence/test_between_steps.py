"""What a script does to a model and its optimizer besides its steps: at the start and the end of an epoch, and after
``session.step``. A joining node runs the start of the epoch's body once more, and a batch may run again.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss

import pilot.train
from tests.equivalence.loops import (
    BATCH,
    DATA,
    EPOCHS,
    Result,
    a_step,
    an_epoch,
    assert_equal,
    fresh,
    mlp,
    tensors,
    trained,
)
from tests.equivalence.rows import on_ranks
from tests.everyday import PARTS, parts
from tests.unit.train.storm import End

Deed = Callable[[nn.Module, torch.optim.Optimizer], object]


def nothing(_model: nn.Module, _optimizer: torch.optim.Optimizer) -> None:
    pass


def doing(
    made: Callable[..., Any],
    *,
    model: Callable[[], nn.Module] = mlp,
    at_first: Deed = nothing,
    after_step: Deed = nothing,
    at_last: Deed = nothing,
) -> Result:
    """It ignores the result of ``session.step``."""
    net = fresh(model)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)

    def body(*parts: Any) -> None:
        a_step(*parts)
        after_step(net, optimizer)

    first, last = (lambda _epoch, deed=deed: deed(net, optimizer) for deed in (at_first, at_last))
    return trained(made, net, optimizer, at_first=first, body=body, at_last=last)


def lowers_the_rate(_model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for group in optimizer.param_groups:
        group["lr"] *= 0.5


def forgets_momenta(_model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.state.clear()


def decays_weights(model: nn.Module, _optimizer: torch.optim.Optimizer) -> None:
    for p in model.parameters():
        p.data.mul_(0.9)


def loads_weights(model: nn.Module, _optimizer: torch.optim.Optimizer) -> None:
    model.load_state_dict({name: value * 0.9 for name, value in model.state_dict().items()})


def scales_momenta(_model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for state in optimizer.state.values():
        state["momentum_buffer"].mul_(0.9)


def loads_momenta(_model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    saved = optimizer.state_dict()
    for state in saved["state"].values():
        state["momentum_buffer"] = state["momentum_buffer"] * 0.9
    optimizer.load_state_dict(saved)


class Unsaved(nn.Module):
    """With a buffer that is not saved, by which it multiplies; ``in_forward``: and which forward changes."""

    scale: torch.Tensor

    def __init__(self, *, in_forward: bool = False) -> None:
        super().__init__()
        self.register_buffer("scale", torch.ones(()), persistent=False)
        self._in_forward = in_forward

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self._in_forward and self.training:
            self.scale = self.scale * 0.9
        return x * self.scale


def with_an_unsaved_buffer(*, in_forward: bool = False) -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), Unsaved(in_forward=in_forward), nn.Linear(4, 1))


def scales_the_buffer(model: Any, _optimizer: torch.optim.Optimizer) -> None:
    model[1].scale *= 0.9


class Halves(nn.Module):
    """In evaluation mode."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x if self.training else x * 0.5


def with_a_mode() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), Halves(), nn.Linear(4, 1))


def forgets_train(model: nn.Module, _optimizer: torch.optim.Optimizer) -> None:
    model.eval()


rate_lowered_at_first = partial(doing, at_first=lowers_the_rate)
rate_lowered_at_last = partial(doing, at_last=lowers_the_rate)
rate_lowered_after_each_step = partial(doing, after_step=lowers_the_rate)
momenta_forgotten = partial(doing, at_first=forgets_momenta)
weights_decayed_after_each_step = partial(doing, after_step=decays_weights)
weights_loaded_at_last = partial(doing, at_last=loads_weights)
left_in_evaluation_mode = partial(doing, model=with_a_mode, at_last=forgets_train)
momenta_scaled_after_each_step = partial(doing, after_step=scales_momenta)
momenta_loaded_after_each_step = partial(doing, after_step=loads_momenta)
unsaved_buffer_scaled_after_each_step = partial(doing, model=with_an_unsaved_buffer, after_step=scales_the_buffer)
unsaved_buffer_replaced_in_forward = partial(doing, model=partial(with_an_unsaved_buffer, in_forward=True))


def rate_lowered_in_each_iteration(made: Callable[..., Any]) -> Result:
    """At the start of its turn, which is repeated if its step is void."""
    net = fresh(mlp)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    session = made(net, optimizer)
    loader = session.loader(DATA, global_batch_size=BATCH)
    for _ in session.iterations(9):
        lowers_the_rate(net, optimizer)
        x, y = loader.next()
        a_step(session, net, optimizer, x, y)
    return tensors(model=net, optimizer=optimizer)


EQUAL = (
    "rate_lowered_at_first",
    "rate_lowered_at_last",
    "rate_lowered_after_each_step",
    "momenta_forgotten",
    "weights_decayed_after_each_step",
    "weights_loaded_at_last",
    "left_in_evaluation_mode",
    "rate_lowered_in_each_iteration",
)
VALUES = (
    "momenta_scaled_after_each_step",
    "momenta_loaded_after_each_step",
    "unsaved_buffer_scaled_after_each_step",
    "unsaved_buffer_replaced_in_forward",
)


@pytest.mark.parametrize("part", parts())
@pytest.mark.parametrize("name", EQUAL)
def test_it_counts_once(name: str, part: int) -> None:
    assert_equal(globals()[name], operations=range(2 + part, 14, PARTS), joins=range(2 + part, 14, PARTS))


@pytest.mark.parametrize("name", VALUES)
def test_values_are_put_back(name: str) -> None:
    assert_equal(globals()[name], operations=range(2, 14, 3), joins=range(3, 14, 3))


@pytest.mark.parametrize("at", [13, 14, 15])
def test_a_state_taken_over_in_inference_mode_can_be_trained(at: int) -> None:
    """As by a script that evaluates in it."""

    def script(made: Callable[..., Any]) -> Result:
        net = fresh(mlp)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
        session = made(net, optimizer)
        loader = session.loader(DATA, global_batch_size=BATCH)
        for _ in session.epochs(EPOCHS):
            an_epoch(session, loader, net, optimizer)
            with torch.inference_mode():
                session.evaluate(DATA, lambda batch: {"loss": mse_loss(net(batch[0]), batch[1])}, batch_size=1)
        return tensors(model=net, optimizer=optimizer)

    expected = script(pilot.train.session)
    for result in on_ranks(lambda: script(pilot.train.session), 1, [End(at, (True,), (False,), 1)]):
        for name, value in result.items():
            torch.testing.assert_close(value, expected[name], rtol=1e-12, atol=1e-12)
