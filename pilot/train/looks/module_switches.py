"""Tells of hooks and layers without parameters that the script changes in one epoch for later ones: a hook that it
registers, or removes, ``if epoch == 3``, an activation that it replaces. A process that joins has them as they are
before the loop, but for what its own epoch's beginning does.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from types import FrameType
from typing import Any

from torch import nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from pilot.train.looks.spaced import Spaced
from pilot.train.script import called, refusal
from pilot.train.script.objects import WITH_ITEMS, inner, is_of_the_script
from pilot.train.state.training import Training

_PARTS = 1000
_FIRST_LOOKS = 12
"""Looks take one of so many parts of the time, but for the first ones."""
_SHOWN = 5
_OF_MODULES = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
_OF_OPTIMIZERS = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")

Marks = dict[str, Any]
"""By name: what another one is if hooks or a layer are."""


class ModuleSwitches:
    """Looks for one session. ``training``: what it knows."""

    def __init__(self, training: Training) -> None:
        self._training = training
        self._spaced = Spaced(_PARTS, _FIRST_LOOKS)
        self._first: Marks = {}
        self._in_step: Marks | None = None
        self._at_beginning: Marks | None = None
        self._told = False

    def begin(self) -> None:
        """The loop begins."""
        self._first = self._marks()

    def epoch_begins(self) -> None:
        """The body of ``session.epochs`` begins. What differs from the epoch's first step was changed since, for good
        if it is not as before the loop.
        """
        before, self._in_step, self._at_beginning = self._in_step, None, None
        if not (self._told or self._training.on_restore) and self._spaced.is_due():
            with self._spaced.doing():
                self._at_beginning = now = self._marks()
                if before is not None:
                    changed = {name for name in {*now, *before} if now.get(name) != before.get(name)}
                    self._tell([name for name in self._others(now) if name in changed])

    def step(self, frames: Sequence[FrameType], head: int) -> None:
        """The epoch's first step.

        Parameters
        ----------
        frames : the running functions, from the one with the session's loop over epochs on
        head : where that loop begins
        """
        before, self._at_beginning = self._at_beginning, None
        if before is not None and not self._told:
            with self._spaced.doing():
                self._in_step = now = self._marks()
                left = [name for name in self._others(now) if now.get(name) == before.get(name)]
                if left and called.changes_under_equality(frames, head, self._is_switched):
                    self._tell(left)

    def _others(self, now: Marks) -> list[str]:
        """Than before the loop."""
        return [name for name in {**now, **self._first} if now.get(name) != self._first.get(name)]

    def _marks(self) -> Marks:
        found: Marks = {}
        for path, module in self._training.model.named_modules():
            name = f"model.{path}".rstrip(".")
            found[name] = type(module)
            if (forward := vars(module).get("forward")) is not None:
                found[f"{name}.forward"] = _code_of(forward)
            found[f"{name}.hook"] = _hooks_of(module, _OF_MODULES)
            for key, parameter in module._parameters.items():
                if parameter is not None:
                    kinds = (parameter._backward_hooks, parameter._post_accumulate_grad_hooks)
                    found[f"{name}.{key}.hook"] = [mark for kind in kinds for mark in _hooks_in(kind)]
        for name, one in self._training.steppers.optimizers.items():
            found[f"optimizer {name}".rstrip() + ".hook"] = _hooks_of(one, _OF_OPTIMIZERS)
        return {name: mark for name, mark in found.items() if mark}

    def _is_switched(self, value: object) -> bool:
        """Whether it is something by which a script changes hooks or layers."""
        if isinstance(value, WITH_ITEMS):
            return any(isinstance(one, RemovableHandle) for _, one in inner(value))
        return isinstance(value, nn.Module | Optimizer | RemovableHandle)

    def _tell(self, names: Sequence[str]) -> None:
        if names:
            self._told = True
            refusal.note(
                "the script changes hooks or layers in one epoch for later ones"
                f" ({', '.join(names[:_SHOWN])}{', ...' if len(names) > _SHOWN else ''}), and a node that joins, or a"
                " run that resumes, has them as they are before the loop: register a hook before the loop, and let it"
                " ask a value in session.state whether it acts; set a layer in each epoch that has it (if epoch >= 3)"
            )


def _hooks_of(holder: nn.Module | Optimizer, kinds: Sequence[str]) -> list[Any]:
    return [(kind, mark) for kind in kinds for mark in _hooks_in(vars(holder).get(kind))]


def _hooks_in(hooks: Any) -> list[Any]:
    """The script's, not those of libraries."""
    return [_code_of(one) for one in list((hooks or {}).values()) if _is_own(one)]


def _code_of(function: Any) -> Any:
    if isinstance(function, partial):
        return _code_of(function.func)
    return getattr(function, "__code__", None) or getattr(function, "__qualname__", type(function))


def _is_own(hook: Any) -> bool:
    code = _code_of(hook)
    filename = getattr(code, "co_filename", None)
    return is_of_the_script(type(hook)) if filename is None else not refusal.is_of_a_library(filename)
