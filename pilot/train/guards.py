"""What a script must not do in its loop, because ranks would silently differ; also refused when it runs alone."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from pilot.core.errors import UserError
from pilot.train.optimizer_state import parameters_of


class StepGuard:
    """Only the session steps its optimizers, and no other one steps parameters with them.

    ``looping``: the script is in the body of ``session.epochs``; ``passing``: there in its pass over the loader. (What
    it trains between two passes, as a probe, is its own.)
    """

    def __init__(self, optimizers: Iterable[torch.optim.Optimizer]) -> None:
        _watch_steps()
        self._optimizers = list(optimizers)
        self._ours = False
        self.looping = False
        self.passing = False

    @contextmanager
    def in_loop(self) -> Iterator[None]:
        """Guard the body of ``session.epochs``."""
        thread = threading.get_ident()
        _in_loops[thread] = self
        self.looping = True
        try:
            yield
        finally:
            self.looping = self.passing = False
            _in_loops.pop(thread, None)

    @contextmanager
    def session_steps(self) -> Iterator[None]:
        """The step within is the session's."""
        self._ours = True
        try:
            yield
        finally:
            self._ours = False

    def before_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Refuse a step that is not the session's."""
        if any(optimizer is one for one in self._optimizers):
            if not self._ours:
                raise UserError("the script calls optimizer.step() in its loop: remove that; session.step does it")
        elif self.passing and _steps_parameters(optimizer):
            if self._ours:
                raise UserError(
                    f"an optimizer of the session steps another one in its own step ({type(optimizer).__name__}), whose"
                    " state would not reach the other nodes: pass that one to pilot.train.session, do the rest after"
                    " session.step, and pass the state of the outer one to session.track"
                )
            raise UserError(
                f"a second optimizer ({type(optimizer).__name__}) steps between the batches of session.loader: its"
                " gradients are not summed over the nodes; pass both to pilot.train.session, as a list or a dict by"
                " name"
            )


_in_loops: dict[int, StepGuard] = {}
"""By thread."""


@cache
def _watch_steps() -> None:
    """Once for all, before any step: torch calls its hooks without a lock, so none may come or go meanwhile."""
    register_optimizer_step_pre_hook(_before_step)


def _before_step(optimizer: torch.optim.Optimizer, _arguments: Any, _keywords: Any) -> None:
    if (guard := _in_loops.get(threading.get_ident())) is not None:
        guard.before_step(optimizer)


def _steps_parameters(optimizer: torch.optim.Optimizer) -> bool:
    """And not tensors that live for one step, as of an attack on the inputs."""
    return any(isinstance(parameter, nn.Parameter) for parameter in parameters_of(optimizer))
