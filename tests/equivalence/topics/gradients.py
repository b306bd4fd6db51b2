"""Gradients: how they are made, accumulated, cleared, clipped."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import pilot.train
from tests.equivalence.recipe import Recipe
from tests.equivalence.rows import Row, Topic


def clip_the_sums(session: pilot.train.Session, model: nn.Module) -> None:
    if session.sum():
        clip(model)


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
    """An optimizer of something that lives for one step only."""
    shift = torch.zeros_like(x, requires_grad=True)
    attack = torch.optim.SGD([shift], lr=0.1)
    (shift.grad,) = torch.autograd.grad(-model(x + shift).square().mean() * len(x), shift)
    attack.step()
    return (model(x + shift.detach()) - 0.5).square().mean()


ROWS: list[Row] = [
    Recipe(name="micro-batches of 1", micro=1),
    Recipe(name="micro-batches of 2 of 5 samples, ragged", micro=2, batch=5, core=True),
    Recipe(name="clipped by the session", before_step=by_the_session, plain_before_step=clip),
    Recipe(name="clipped by the script after session.sum", before_step=clip_the_sums, plain_before_step=clip),
    Recipe(name="clipped by the script, micro-batches", micro=1, before_step=clip_the_sums, plain_before_step=clip),
    Recipe(name="zero_grad(set_to_none=False)", loss=zeroes_in_place),
    Recipe(name="a gradient penalty by torch.autograd.grad", loss=with_penalty),
    Recipe(name="activation checkpointing", loss=checkpointed),
    Recipe(name="activation checkpointing, use_reentrant=True, each layer once", loss=checkpointed_reentrant),
    Recipe(name="an optimizer of what lives for one step (an attack)", loss=steps_a_perturbation),
]
TOPIC = Topic(30, "Gradients", ROWS)
