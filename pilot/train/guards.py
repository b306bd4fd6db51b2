"""What a script may not do in its loop, because ranks would differ without a word; alone it may not do it either."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from operator import attrgetter, is_
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from pilot.core.errors import UserError


class StepGuard:
    """Only the session steps its optimizer, and no other optimizer steps a model's parameters with it.

    ``looping``: the script is in the body of ``session.epochs``; ``passing``: there in its pass over the loader. (What
    it trains between two passes, as a probe, is its own.)
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer
        self._thread = threading.get_ident()
        self._ours = False
        self.looping = False
        self.passing = False

    @contextmanager
    def in_loop(self) -> Iterator[None]:
        """Guard the body of ``session.epochs``."""
        handle = register_optimizer_step_pre_hook(self._before_step)
        self.looping = True
        try:
            yield
        finally:
            self.looping = self.passing = False
            handle.remove()

    @contextmanager
    def session_steps(self) -> Iterator[None]:
        """The step within is the session's."""
        self._ours = True
        try:
            yield
        finally:
            self._ours = False

    def _before_step(self, optimizer: torch.optim.Optimizer, _arguments: Any, _keywords: Any) -> None:
        if threading.get_ident() != self._thread:
            return
        if optimizer is self._optimizer:
            if not self._ours:
                raise UserError("the script calls optimizer.step() in its loop: session.step steps it; leave it out")
        elif self.passing and _steps_parameters(optimizer):
            raise UserError(
                f"a second optimizer ({type(optimizer).__name__}) steps between the batches of session.loader: its"
                " gradients are not summed over the nodes; give pilot.train.session one, with a group for each part"
            )


def _steps_parameters(optimizer: torch.optim.Optimizer) -> bool:
    """And not tensors that live for one step, as of an attack on the inputs."""
    return any(isinstance(p, nn.Parameter) for group in optimizer.param_groups for p in group["params"])


class TrainedSet:
    """Which parameters are trained, as it was when the session was made: who comes later would not know of a change."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self._model = model
        self._optimizer = optimizer
        self._named = list(model.named_parameters())
        self._parameters = [parameter for _, parameter in self._named]
        self._required = self._now_required()
        self._grouped = [list(group["params"]) for group in optimizer.param_groups]

    def check(self) -> None:
        """At each step; see ``benchmarks.guards`` for what it costs."""
        if self._now_required() != self._required:
            raise UserError(self._which() + _INSTEAD)
        groups = self._optimizer.param_groups
        if len(groups) != len(self._grouped) or not all(
            len(group["params"]) == len(was) and all(map(is_, group["params"], was))
            for group, was in zip(groups, self._grouped, strict=True)
        ):
            raise UserError("the optimizer's parameter groups have changed since the session was made" + _INSTEAD)

    def check_model(self) -> None:
        """At each epoch; it walks over the modules."""
        self.check()
        now = list(self._model.named_parameters())
        if [(name, id(p)) for name, p in now] != [(name, id(p)) for name, p in self._named]:
            names = sorted({name for name, _ in now} ^ {name for name, _ in self._named}) or ["one of them"]
            raise UserError(f"the model's parameters have changed since the session was made ({names[0]})" + _INSTEAD)

    def _now_required(self) -> list[bool]:
        return list(map(_requires_grad, self._parameters))

    def _which(self) -> str:
        name, now = next(
            (name, p.requires_grad)
            for (name, p), was in zip(self._named, self._required, strict=True)
            if p.requires_grad != was
        )
        return f"the parameter {name} was {'unfrozen' if now else 'frozen'} after the session was made"


_requires_grad = attrgetter("requires_grad")

_INSTEAD = (
    ": nodes that join later would not know. Choose what is trained before pilot.train.session; to train a part later,"
    " give it a parameter group with lr=0 and set its lr by the scheduler"
)
