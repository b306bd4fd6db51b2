"""Refused in the first step in which it would matter: what a script does with gradients."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from tests.equivalence.refusing import Made, Refusals
from tests.equivalence.rows import Topic

ROWS = Refusals()


@ROWS.made(
    "torch.nn.utils.clip_grad_norm_ before session.step",
    "clip with session.clip_grad_norm",
    "`session.clip_grad_norm`, or `session.sum` before",
)
def clips_itself(made: Made) -> None:
    for x in made.batches():
        made.loss(x).backward()
        nn.utils.clip_grad_norm_(made.model.parameters(), 1.0)
        made.session.step()


@ROWS.made(
    "torch.nn.utils.clip_grad_norm_ before session.step, and an unused layer",
    "clip with session.clip_grad_norm",
    "`session.clip_grad_norm`, or `session.sum` before",
)
def clips_what_there_is(made: Made) -> None:
    for x in made.batches():
        made.model[2](x).square().mean().backward()
        nn.utils.clip_grad_norm_(made.model.parameters(), 1.0)
        made.session.step()


@ROWS.made("p.grad changed in place before session.step", "session.sum", "`session.sum` before")
def edits_a_gradient(made: Made) -> None:
    for x in made.batches():
        made.loss(x).backward()
        for parameter in made.model.parameters():
            if parameter.grad is not None:
                parameter.grad.mul_(2)
        made.session.step()


@ROWS.made("p.grad replaced before session.step", "session.sum", "`session.sum` before")
def replaces_a_gradient(made: Made) -> None:
    for x in made.batches():
        made.loss(x).backward()
        made.model[0].weight.grad = torch.zeros_like(made.model[0].weight)
        made.session.step()


@ROWS.made("zero_grad between backward and session.step", "on their way", "before backward")
def zeroes_after_backward(made: Made) -> None:
    for x in made.batches():
        made.loss(x).backward()
        made.optimizer.zero_grad()
        made.session.step()


@ROWS.made("backward twice for a batch", "call backward once", "add the losses up, or micro_batch_size")
def calls_backward_twice(made: Made) -> None:
    for x in made.batches():
        made.loss(x).backward()
        made.loss(x).backward()
        made.session.step()


@ROWS.made("a second backward that reaches a part of the parameters", "call backward once", "add the losses up")
def calls_backward_again_for_a_part(made: Made) -> None:
    for x in made.batches():
        made.loss(x).backward()
        made.model[0].weight.sum().backward()
        made.session.step()


@ROWS.made(
    "a second backward between session.sum and session.step (sharpness-aware minimization)",
    "compute the first with torch.autograd.grad",
    "the first gradient by `torch.autograd.grad`",
)
def computes_another_gradient(made: Made) -> None:
    for x in made.batches():
        made.loss(x).backward()
        made.session.sum()
        made.optimizer.zero_grad()
        made.loss(x + 0.1).backward()
        made.session.step()


@ROWS.made("backward(create_graph=True)", "create_graph=True", "`torch.autograd.grad`")
def creates_a_graph(made: Made) -> None:
    for x in made.batches():
        made.loss(x).backward(create_graph=True)
        made.session.step()


@ROWS.made("reentrant checkpointing of a shared layer", "use_reentrant=False", "use_reentrant=False")
def checkpoints_a_shared_layer(made: Made) -> None:
    shared = made.model[0]
    for x in made.batches():
        once = checkpoint(shared, x.requires_grad_(), use_reentrant=True)
        made.model[2](checkpoint(shared, once, use_reentrant=True)).sum().backward()
        made.session.step()


@ROWS.made("no zero_grad", "zero_grad is missing", "zero_grad before backward")
def never_zeroes(made: Made) -> None:
    for _ in made.session.epochs(1):
        for (x,) in made.loader:
            made.loss(x).backward()
            made.session.step()


@ROWS.made(
    "zero_grad(set_to_none=False), and a layer used in some batches only",
    "does not use a parameter of",
    "zero_grad()",
)
def zeroes_in_place(made: Made) -> None:
    for _ in made.session.epochs(1):
        for number, (x,) in enumerate(made.loader):
            made.optimizer.zero_grad(set_to_none=False)
            (made.loss(x) if number == 0 else made.model[2](x).square().mean()).backward()
            made.session.step()


@ROWS.made("zero_grad(set_to_none=False), and a layer frozen in a later epoch", "still has a gradient", "zero_grad()")
def zeroes_in_place_and_freezes(made: Made) -> None:
    for epoch in made.session.epochs(2):
        made.model[0].requires_grad_(epoch == 0)
        for (x,) in made.loader:
            made.optimizer.zero_grad(set_to_none=False)
            made.loss(x).backward()
            made.session.step()


TOPIC = Topic(119, "Refused in the loop: gradients", ROWS)
