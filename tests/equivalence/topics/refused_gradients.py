"""Refused in the first step in which it would matter: what a script does with gradients."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from tests.equivalence.loops import Loop
from tests.equivalence.refusing import Refusals
from tests.equivalence.rows import Topic

ROWS = Refusals()
CLIP, CLIP_INSTEAD = "clip with session.clip_grad_norm", "`session.clip_grad_norm`, or `session.sum` before"


@ROWS.step("torch.nn.utils.clip_grad_norm_ before session.step", CLIP, CLIP_INSTEAD)
def clip(loop: Loop, _x: torch.Tensor) -> None:
    nn.utils.clip_grad_norm_(loop.model.parameters(), 1.0)


@ROWS.batch("torch.nn.utils.clip_grad_norm_ before session.step, and an unused layer", CLIP, CLIP_INSTEAD)
def clip_the_gradients_that_exist(loop: Loop, x: torch.Tensor) -> None:
    loop.model[2](x).square().mean().backward()
    nn.utils.clip_grad_norm_(loop.model.parameters(), 1.0)
    loop.session.step()


@ROWS.step("p.grad changed in place before session.step", "session.sum", "`session.sum` before")
def edit_gradients(loop: Loop, _x: torch.Tensor) -> None:
    for parameter in loop.model.parameters():
        if parameter.grad is not None:
            parameter.grad.mul_(2)


@ROWS.step("p.grad replaced before session.step", "session.sum", "`session.sum` before")
def replace_a_gradient(loop: Loop, _x: torch.Tensor) -> None:
    loop.model[0].weight.grad = torch.zeros_like(loop.model[0].weight)


ROWS.step("zero_grad between backward and session.step", "on their way", "before backward")(
    lambda loop, _: loop.optimizer.zero_grad()
)
ROWS.step("backward twice for a batch", "call backward once", "add the losses up, or micro_batch_size")(
    lambda loop, x: loop.loss(x).backward()
)
ROWS.step("a second backward that reaches a part of the parameters", "call backward once", "add the losses up")(
    lambda loop, _: loop.model[0].weight.sum().backward()
)


@ROWS.step(
    "a second backward between session.sum and session.step (sharpness-aware minimization)",
    "compute the first with torch.autograd.grad",
    "the first gradient by `torch.autograd.grad`",
)
def compute_another_gradient(loop: Loop, x: torch.Tensor) -> None:
    loop.session.sum()
    loop.optimizer.zero_grad()
    loop.loss(x + 0.1).backward()


ROWS.batch("backward(create_graph=True)", "create_graph=True", "`torch.autograd.grad`")(
    lambda loop, x: (loop.loss(x).backward(create_graph=True), loop.session.step())
)


@ROWS.batch(
    "a backward for an input's gradient (FGSM, VAT)",
    "input's gradient from torch.autograd.grad",
    "`torch.autograd.grad`, or backward(inputs=...)",
)
def attack_by_backward(loop: Loop, x: torch.Tensor) -> None:
    """Fast adversarial training; virtual adversarial training does the same."""
    noise = torch.zeros_like(x, requires_grad=True)
    loop.loss(x + noise, torch.ones(len(x), 1)).backward()
    loop.step(x + 0.1 * noise.grad.sign())


@ROWS.batch("reentrant checkpointing of a shared layer", "use_reentrant=False", "use_reentrant=False")
def checkpoint_a_shared_layer(loop: Loop, x: torch.Tensor) -> None:
    shared = loop.model[0]
    once = checkpoint(shared, x.requires_grad_(), use_reentrant=True)
    loop.model[2](checkpoint(shared, once, use_reentrant=True)).sum().backward()
    loop.session.step()


@ROWS.made("no zero_grad", "zero_grad is missing", "zero_grad before backward")
def never_zero(loop: Loop) -> None:
    for (x,) in loop.batches():
        loop.loss(x).backward()
        loop.session.step()


@ROWS.made(
    "zero_grad(set_to_none=False), and a layer used in some batches only", "does not use a parameter of", "zero_grad()"
)
def zero_in_place(loop: Loop) -> None:
    for number, (x,) in enumerate(loop.batches()):
        loop.optimizer.zero_grad(set_to_none=False)
        (loop.loss(x) if number == 0 else loop.model[2](x).square().mean()).backward()
        loop.session.step()


@ROWS.made("zero_grad(set_to_none=False), and a layer frozen in a later epoch", "still has a gradient", "zero_grad()")
def zero_in_place_and_freeze(loop: Loop) -> None:
    def body(x: torch.Tensor) -> None:
        loop.optimizer.zero_grad(set_to_none=False)
        loop.loss(x).backward()
        loop.session.step()

    loop.train(first=lambda epoch: loop.model[0].requires_grad_(epoch == 0), body=body)


TOPIC = Topic(119, "Refused in the loop: gradients", ROWS)
