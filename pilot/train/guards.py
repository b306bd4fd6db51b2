"""What a script must not do in its loop, because ranks would silently differ; also refused when it runs alone."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from pilot.core.errors import UserError


class StepGuard:
    """Only the session steps its optimizers, and no other one steps parameters with them.

    ``looping``: the script is in the body of ``session.epochs``; ``passing``: there in its pass over the loader. (What
    it trains between two passes, as a probe, is its own.)
    """

    def __init__(self, optimizers: Iterable[torch.optim.Optimizer]) -> None:
        self._optimizers = list(optimizers)
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
        if any(optimizer is one for one in self._optimizers):
            if not self._ours:
                raise UserError("the script calls optimizer.step() in its loop: remove that; session.step does it")
        elif self.passing and _steps_parameters(optimizer):
            if self._ours:
                raise UserError(
                    f"an optimizer of the session steps another one in its own step ({type(optimizer).__name__}), whose"
                    " state would not come to the other nodes: give pilot.train.session that one, do the rest after"
                    " session.step, and hand what it keeps to session.track"
                )
            raise UserError(
                f"a second optimizer ({type(optimizer).__name__}) steps between the batches of session.loader: its"
                " gradients are not summed over the nodes; pass both to pilot.train.session, as a list or a dict by"
                " name"
            )


def _steps_parameters(optimizer: torch.optim.Optimizer) -> bool:
    """And not tensors that live for one step, as of an attack on the inputs."""
    return any(isinstance(p, nn.Parameter) for group in optimizer.param_groups for p in group["params"])
