"""Refuses actions of a script in its loop by which ranks would silently diverge; also if it runs alone."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, wraps
from typing import Any

import torch
from torch import nn
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.optimizer import register_optimizer_step_pre_hook

from pilot.core.errors import UserError
from pilot.train.state.optimizer_state import parameters_of
from pilot.train.state.stepper import Steppers

_AFTER_BREAK = (
    " (a loop that a variable holds, such as a progress bar, is not left by break: call session.stop() instead)"
)


class StepGuard:
    """Ensures that only the session steps its optimizers, and that no other optimizer steps parameters beside them or
    replaces them.

    ``backward_ended``: called when a ``backward`` of the script returns. ``summed``: parameters whose gradients are
    sums over the ranks, until ``session.step`` uses them; a ``backward`` must not add to them. ``looping``: the script
    is in the body of ``session.epochs``; ``passing``: it is in a pass over the loader there. (Between two passes it may
    train something else, such as a probe.)
    """

    def __init__(self, steppers: Steppers) -> None:
        _watch()
        self._optimizers = list(steppers.optimizers.values())
        self._scalers = list(steppers.scalers.values())
        self._ours = False
        self.backward_ended: Callable[[], None] = lambda: None
        self.summed: Sequence[torch.Tensor] = ()
        self.looping = False
        self.passing = False
        self._thread = 0

    @contextmanager
    def in_loop(self) -> Iterator[None]:
        """Guard the body of ``session.epochs``."""
        self._thread = thread = threading.get_ident()
        _in_loops[thread] = self
        self.looping = True
        try:
            yield
        finally:
            self.looping = self.passing = False
            _in_loops.pop(thread, None)

    def expect_own_thread(self) -> None:
        """Refuse a thread that takes batches ahead of their steps."""
        if threading.get_ident() != self._thread:
            raise UserError(
                "another thread takes the batches of session.loader, but the session gives each when the step before"
                " it is done: iterate over it in the loop itself; to load ahead, use num_workers="
            )

    @contextmanager
    def session_steps(self) -> Iterator[None]:
        """Allow steps of the session's optimizers in the body, which are the session's own."""
        self._ours = True
        try:
            yield
        finally:
            self._ours = False

    def before_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Refuse a step that is not the session's."""
        if self._has(optimizer):
            if not self._ours:
                raise UserError(
                    f"the script calls optimizer.step() in its loop: remove that; session.step does it{_AFTER_BREAK}"
                )
        elif self._ours:
            raise UserError(
                f"an optimizer of the session steps another one in its own step ({type(optimizer).__name__}), whose"
                " state would not reach the other nodes: pass that one to pilot.train.session, do the rest after"
                " session.step, and pass the state of the outer one to session.track; if it steps copies of the"
                " parameters (in float32), keep them and their state in optimizer.state[parameter]"
            )
        elif self.passing and _steps_parameters(optimizer):
            raise UserError(
                f"a second optimizer ({type(optimizer).__name__}) steps between the batches of session.loader: its"
                " gradients are not summed over the nodes; pass both to pilot.train.session, as a list or a dict by"
                " name; to take steps on a copy of the model (meta-learning), use torch.autograd.grad"
            )

    def created(self, optimizer: torch.optim.Optimizer) -> None:
        """Refuse an optimizer that would replace the session's."""
        self._expect_ours(optimizer, "the script creates")

    def zeroed(self, optimizer: torch.optim.Optimizer) -> None:
        """Refuse an optimizer that has replaced the session's."""
        if self.passing:
            self._expect_ours(optimizer, "the script uses")

    def scheduled(self, scheduler: LRScheduler) -> None:
        """Refuse a scheduler that a joining node would restart from the beginning."""
        if self._has(scheduler.optimizer):
            raise UserError(
                f"the script creates a learning-rate scheduler ({type(scheduler).__name__}) in its loop, which nodes"
                " that join would begin anew: create it before the loop, and pass it to pilot.train.session with"
                " schedule=, or step it yourself and call session.track('scheduler', it)"
            )

    def scaled(self, scaler: torch.amp.GradScaler) -> None:
        """Refuse a scaler that the session does not know, because nothing would unscale."""
        if self.passing and scaler.is_enabled() and not any(scaler is one for one in self._scalers):
            raise UserError(
                "the script scales its loss by a GradScaler that the session does not have, so it would step with"
                " scaled gradients: pass it to pilot.train.session as scaler="
            )

    def updated(self, scaler: torch.amp.GradScaler) -> None:
        """Refuse an update that is not the session's, which torch would take for an update without a step."""
        if not self._ours and scaler.is_enabled() and any(scaler is one for one in self._scalers):
            raise UserError("the script calls scaler.update() in its loop: remove that; session.step does it")

    def _has(self, optimizer: torch.optim.Optimizer) -> bool:
        return any(optimizer is one for one in self._optimizers)

    def _expect_ours(self, optimizer: torch.optim.Optimizer, deed: str) -> None:
        if self._has(optimizer) or self._wraps(optimizer):
            return
        its = {id(parameter) for one in self._optimizers for parameter in parameters_of(one)}
        if any(id(parameter) in its for parameter in parameters_of(optimizer)):
            raise UserError(
                f"{deed} another optimizer ({type(optimizer).__name__}) for the session's parameters in its loop, but"
                " session.step steps the one that pilot.train.session got: to reset that one use"
                " optimizer.state.clear() and set the options in its param_groups; to train other parameters use"
                f" requires_grad_ or add_param_group, at an epoch's beginning{_AFTER_BREAK}"
            )

    def _wraps(self, optimizer: torch.optim.Optimizer) -> bool:
        """Return whether ``optimizer`` wraps one of the session's (Lookahead, SAM): it has that, or its groups."""
        around = vars(optimizer).values()
        ours = [*self._optimizers, *(one.param_groups for one in self._optimizers)]
        return any(one is other for one in around for other in ours)


_in_loops: dict[int, StepGuard] = {}
"""The guards of running loops, by thread."""


@cache
def _watch() -> None:
    """Install the hooks once, before any step: torch calls hooks without a lock, so they must not change later."""
    register_optimizer_step_pre_hook(_before_step)
    _watch_method(torch.optim.Optimizer, "__init__", StepGuard.created)
    _watch_method(torch.optim.Optimizer, "zero_grad", StepGuard.zeroed)
    _watch_method(LRScheduler, "__init__", StepGuard.scheduled)
    _watch_method(torch.amp.GradScaler, "scale", StepGuard.scaled)
    _watch_method(torch.amp.GradScaler, "update", StepGuard.updated, before=True)
    _watch_backward()


def _watch_method(kind: type, method: str, callback: Any, *, before: bool = False) -> None:
    """Watch a method for which torch has no hooks; call ``callback`` after it, or ``before``."""
    original = getattr(kind, method)

    @wraps(original)
    def watched(self: Any, *arguments: Any, **keywords: Any) -> Any:
        guard = _in_loops.get(threading.get_ident())
        if guard is not None and before:
            callback(guard, self)
        result = original(self, *arguments, **keywords)
        if guard is not None and not before:
            callback(guard, self)
        return result

    setattr(kind, method, watched)


def _watch_backward() -> None:
    """Watch ``backward``, except within another ``backward`` (of checkpointed activations)."""
    original = torch.autograd.backward
    within = threading.local()

    @wraps(original)
    def watched(*arguments: Any, **keywords: Any) -> None:
        outer, within.any = getattr(within, "any", False), True
        try:
            guard = None if outer else _in_loops.get(threading.get_ident())
            sums = _sums(guard.summed) if guard is not None and guard.summed else None
            original(*arguments, **keywords)
        finally:
            within.any = outer
        if guard is not None:
            if sums is not None and _sums(guard.summed) != sums:
                raise UserError(
                    "backward between session.sum() and session.step() makes gradients that are not summed over the"
                    " nodes; if a step needs two gradients (sharpness-aware minimization), compute the first with"
                    " torch.autograd.grad, and call backward once, before session.sum()"
                )
            guard.backward_ended()

    torch.autograd.backward = watched


def _sums(summed: Sequence[torch.Tensor]) -> list[tuple[int, int]]:
    """Return the identities and versions of the gradients, which change if ``backward`` adds to them."""
    return [(id(p.grad), p.grad._version) if p.grad is not None else (0, 0) for p in summed]


def _before_step(optimizer: torch.optim.Optimizer, _arguments: Any, _keywords: Any) -> None:
    if (guard := _in_loops.get(threading.get_ident())) is not None:
        guard.before_step(optimizer)


def _steps_parameters(optimizer: torch.optim.Optimizer) -> bool:
    """Return whether ``optimizer`` steps parameters, not temporary tensors as in an attack on the inputs."""
    return any(isinstance(parameter, nn.Parameter) for parameter in parameters_of(optimizer))
