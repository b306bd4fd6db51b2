"""What a script is told of what it puts on the session's parts; see :mod:`tests.equivalence.test_notes`."""

from __future__ import annotations

from collections import deque
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss

from tests.equivalence.loops import BATCH, DATA, fresh, mlp, session, train


class Counter:
    """A hook with a state."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, *_: Any) -> None:
        self.count += 1


def averages(model: nn.Module, _optimizer: torch.optim.Optimizer) -> None:
    for p in model.parameters():
        p.average = p.detach().clone()


def notes(model: nn.Module, _optimizer: torch.optim.Optimizer) -> None:
    for p in model.parameters():
        p.decays = p.dim() > 1


def on_a_module(model: nn.Module, _optimizer: torch.optim.Optimizer) -> None:
    model[0].register_forward_hook(Counter())


class Clipping(torch.optim.SGD):
    """By the last norms of its gradients. Its momentum and its count of steps are part of the state."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, lr=0.05, momentum=0.9)
        self.norms, self.counter, self.count = deque[float](maxlen=3), Counter(), 0
        self.own = self.param_groups[0]["params"]

    @torch.no_grad()
    def step(self, _closure: Any = None) -> None:
        self.count += 1
        self.counter()
        norm = float(torch.stack([p.grad.norm() for p in self.own]).norm())
        for p in self.own:
            p.grad *= min(1.0, (1.0 + sum(self.norms)) / (1.0 + len(self.norms)) / norm)
        self.norms.append(norm)
        super().step()


def on_the_optimizer(_model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.register_step_pre_hook(Counter())


def of_a_closure(model: nn.Module, _optimizer: torch.optim.Optimizer) -> None:
    count = 0

    def hook(*_: Any) -> None:
        nonlocal count
        count += 1

    model.register_forward_pre_hook(hook)


def by_a_method(model: nn.Module, _optimizer: torch.optim.Optimizer) -> None:
    model[0].register_forward_pre_hook(Counter().__call__)


class Fixed(Counter):
    """Does not count."""

    def __call__(self, *_: Any) -> None:
        return


def two_of_which_none_changes(model: nn.Module, _optimizer: torch.optim.Optimizer) -> None:
    for count in (1, 2):
        hook = Fixed()
        hook.count = count
        model[0].register_forward_hook(hook)


def outputs(model: nn.Module, _optimizer: torch.optim.Optimizer) -> None:
    """For a loss that uses them."""
    found: dict[str, torch.Tensor] = {}
    every: list[torch.Tensor] = []

    def keep(_module: nn.Module, _given: Any, output: torch.Tensor) -> None:
        found["hidden"] = output
        every[:] = [output, output]

    model[0].register_forward_hook(keep)


def without_state(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    model.register_forward_hook(lambda _module, _given, output: output * 2)
    optimizer.register_step_post_hook(lambda *_: None)


def of_a_gradient(model: nn.Module, _optimizer: torch.optim.Optimizer) -> None:
    scale = [1.0]

    def hook(gradient: torch.Tensor) -> torch.Tensor:
        scale[0] *= 0.97
        return gradient * scale[0]

    model[0].bias.register_hook(hook)


def after_a_gradient(model: nn.Module, _optimizer: torch.optim.Optimizer) -> None:
    model[0].bias.register_post_accumulate_grad_hook(Counter().__call__)


def of_gradients_without_state(model: nn.Module, _optimizer: torch.optim.Optimizer) -> None:
    for p in model.parameters():
        p.register_hook(lambda gradient: gradient * 2)
        p.register_post_accumulate_grad_hook(lambda p: torch.nn.utils.clip_grad_value_(p, 1.0))


@pytest.mark.parametrize(
    ("prepare", "names"),
    [
        (averages, "0.weight.average, 0.bias.average, 2.weight.average, 2.bias.average"),
        (on_a_module, "0.hook.count"),
        (on_the_optimizer, "optimizer.hook.count"),
        (of_a_closure, "model.hook.count"),
        (by_a_method, "0.hook.count"),
        (of_a_gradient, "0.bias.hook.scale[0]"),
        (after_a_gradient, "0.bias.hook.count"),
        (of_gradients_without_state, ""),
        (notes, ""),
        (outputs, ""),
        (two_of_which_none_changes, ""),
        (without_state, ""),
    ],
)
def test_what_is_put_on_parameters_and_into_hooks(prepare: Any, names: str, capsys: pytest.CaptureFixture[str]) -> None:
    model = fresh(mlp)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    prepare(model, optimizer)
    ours = session(model, optimizer)
    loader = ours.loader(DATA, global_batch_size=BATCH)
    for _ in ours.epochs(2):
        for x, y in loader:
            optimizer.zero_grad()
            loss = mse_loss(model(x), y)
            loss.backward()
            ours.step(loss)
            for p in model.parameters() if prepare is averages else ():
                p.average.lerp_(p.detach(), 0.1)

    lines = [line for line in capsys.readouterr().err.splitlines() if "keeps values" in line]
    assert len(lines) == bool(names)
    assert not names or f"change in its loop ({names})" in lines[0]


def test_what_an_optimizer_keeps_in_attributes(capsys: pytest.CaptureFixture[str]) -> None:
    model = fresh(mlp)
    optimizer = Clipping(model.parameters())
    ours = session(model, optimizer)
    loader = ours.loader(DATA, global_batch_size=BATCH)
    train(ours, model, optimizer, loader)

    (line,) = [line for line in capsys.readouterr().err.splitlines() if "keeps values" in line]
    assert "change in its loop (optimizer.norms, optimizer.counter.count)" in line


@pytest.mark.parametrize("copies", [False, True])
def test_initial_weights_that_the_optimizer_trains_along(copies: bool, capsys: pytest.CaptureFixture[str]) -> None:
    model = fresh(mlp)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    initial = {name: p.detach().clone() for name, p in model.named_parameters()}
    ours = session(model, optimizer)
    loader = ours.loader(DATA, global_batch_size=BATCH)
    for epoch in ours.epochs(3):
        for name, p in model.named_parameters():
            if epoch == 1:  # rewound, as for a lottery ticket
                p.data = initial[name].clone() if copies else initial[name]
        for x, y in loader:
            optimizer.zero_grad()
            loss = mse_loss(model(x), y)
            loss.backward()
            ours.step(loss)
    assert ("initial['0.weight']" in capsys.readouterr().err) is not copies


def test_other_names_for_the_models_tensors(capsys: pytest.CaptureFixture[str]) -> None:
    model = fresh(mlp)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    its, kept = [p.data for p in model.parameters()], SimpleNamespace(weight=torch.zeros(3, 4))
    ours = session(model, optimizer)
    loader = ours.loader(DATA, global_batch_size=BATCH)
    for _ in ours.epochs(3):
        kept.weight = model[0].weight.data
        for x, y in loader:
            optimizer.zero_grad()
            loss = mse_loss(model(x), y) + 0.0 * its[0].sum()
            loss.backward()
            ours.step(loss)
    assert "pilot: " not in capsys.readouterr().err
