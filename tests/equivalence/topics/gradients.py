"""Gradients: how they are made, accumulated, cleared, clipped."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import pilot.train
from tests.equivalence.recipe import Recipe, mlp, square
from tests.equivalence.rows import Row, Topic


def clip(model: nn.Module) -> None:
    nn.utils.clip_grad_norm_(model.parameters(), 0.05)


def by_the_session(session: pilot.train.Session, _model: nn.Module) -> None:
    session.clip_grad_norm(0.05)


def zeroes_in_place(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    model.zero_grad(set_to_none=False)
    return (model(x) - 0.5).square().mean()


def with_penalty(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    inputs = x.detach().requires_grad_()
    loss = (model(inputs) - 0.5).square().mean()
    (slope,) = torch.autograd.grad(model(inputs).sum(), inputs, create_graph=True)
    return loss + slope.square().sum(1).mean()


def checkpointed(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return (checkpoint(model, x, use_reentrant=False) - 0.5).square().mean()


def checkpointed_reentrant(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return (checkpoint(model, x.requires_grad_(), use_reentrant=True) - 0.5).square().mean()


def steps_a_perturbation(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """An optimizer of something that lives only for one step."""
    shift = torch.zeros_like(x, requires_grad=True)
    attack = torch.optim.SGD([shift], lr=0.1)
    (shift.grad,) = torch.autograd.grad(-model(x + shift).square().mean() * len(x), shift)
    attack.step()
    return (model(x + shift.detach()) - 0.5).square().mean()


class TwoParts(nn.Module):
    """With nothing in common but the input."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(3, 2), nn.Linear(3, 1)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.one(x), self.other(x)


def loss_of_each(model: nn.Module, x: torch.Tensor) -> Any:
    return [output.square().mean() for output in model(x)]


def one_after_the_other(losses: Any, _model: nn.Module) -> None:
    for loss in losses:
        loss.backward()


def set_by_hand(loss: torch.Tensor, model: nn.Module) -> None:
    """Instead of backward."""
    parameters = list(model.parameters())
    for p, gradient in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
        p.grad = gradient


class NotZeroed(torch.optim.SGD):
    """For a script without ``zero_grad``."""

    def zero_grad(self, set_to_none: bool = True) -> None:
        pass


def replaced_where_used(loss: torch.Tensor, model: nn.Module) -> None:
    parameters = list(model.parameters())
    for p, gradient in zip(parameters, torch.autograd.grad(loss, parameters, allow_unused=True), strict=True):
        if gradient is not None:
            p.grad = gradient


def with_unused() -> nn.Module:
    model = mlp()
    model[0].register_parameter("unused", nn.Parameter(torch.ones(2)))
    return model


def some_inputs(loss: torch.Tensor, model: nn.Module) -> None:
    loss.backward(inputs=list(model[0].parameters()))


def hooks_linearly(model: nn.Module) -> None:
    next(model.parameters()).register_hook(lambda gradient: gradient * 0.5)


def hooks_a_clamp(model: nn.Module) -> None:
    next(model.parameters()).register_hook(lambda gradient: gradient.clamp(-0.02, 0.02))


def move(model: nn.Module) -> None:
    for p in model.parameters():
        if p.grad is not None:
            p.grad.data = p.grad.data.clamp(-0.02, 0.02)


def drop_one(model: nn.Module) -> None:
    next(model.parameters()).grad = None


class Perturbed(nn.Sequential):
    """Sharpness-aware minimization: its gradient is that at perturbed weights (Foret et al. 2021)."""

    def __init__(self) -> None:
        super().__init__(*mlp())
        self.kept: list[torch.Tensor] = []

    def loss_there(self, x: torch.Tensor) -> torch.Tensor:
        parameters = list(self.parameters())
        gradients = torch.autograd.grad(square(self, x), parameters)
        self.kept = [p.detach().clone() for p in parameters]
        with torch.no_grad():
            torch._foreach_add_(parameters, gradients, alpha=0.1)
        return square(self, x)

    def back(self) -> None:
        with torch.no_grad():
            torch._foreach_copy_(list(self.parameters()), self.kept)


def perturbs(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    assert isinstance(model, Perturbed)
    return model.loss_there(x)


def unperturbs(loss: torch.Tensor, model: nn.Module) -> None:
    assert isinstance(model, Perturbed)
    loss.backward()
    model.back()


ROWS: list[Row] = [
    Recipe(name="gradients by torch.autograd.grad, set by hand", backward=set_by_hand),
    Recipe(
        name="gradients set by hand where there are any, without zero_grad",
        model=with_unused,
        optimizer=lambda parameters: NotZeroed(parameters, lr=0.05, momentum=0.9),
        backward=replaced_where_used,
    ),
    Recipe(
        name="a backward for each of two parts of the model",
        model=TwoParts,
        loss=loss_of_each,
        backward=one_after_the_other,
    ),
    Recipe(name="backward(inputs=...) of some parameters", backward=some_inputs),
    Recipe(name="a linear hook on a gradient", fitted=hooks_linearly),
    Recipe(name="a hook that clamps a gradient", fitted=hooks_a_clamp, different="it sees each rank's own gradient"),
    Recipe(name="p.grad.data replaced after session.sum", on_sums=move),
    Recipe(name="a gradient set to None after session.sum", on_sums=drop_one),
    Recipe(name="micro-batches of 1", micro=1),
    Recipe(name="micro-batches of 2 of 5 samples, ragged", micro=2, batch=5, core=True),
    Recipe(name="clipped by the session", before_step=by_the_session, on_sums=clip),
    Recipe(name="clipped by the script after session.sum", on_sums=clip),
    Recipe(name="zero_grad(set_to_none=False)", loss=zeroes_in_place),
    Recipe(name="a gradient penalty by torch.autograd.grad", loss=with_penalty),
    Recipe(name="activation checkpointing", loss=checkpointed),
    Recipe(name="activation checkpointing, use_reentrant=True, each layer once", loss=checkpointed_reentrant),
    Recipe(
        name="sharpness-aware minimization, the first gradient by torch.autograd.grad",
        model=Perturbed,
        loss=perturbs,
        backward=unperturbs,
        different="each rank perturbs by its own gradient",
    ),
    Recipe(name="an optimizer of what lives for one step (an attack)", loss=steps_a_perturbation),
]
TOPIC = Topic(30, "Gradients", ROWS)
