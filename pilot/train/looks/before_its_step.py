"""Tells of what a script computes with a model before the step of its optimizer, and uses for the step of another one
for the same batch. If a node dies between the two steps, the batch runs again with the parameters after the first.

Only if optimizers are stepped separately, in one function. Read from its code.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import FrameType
from typing import Any

import torch
from torch import nn

from pilot.train.script import loop_code, refusal
from pilot.train.script.bytecode import instructions, running_at
from pilot.train.script.objects import WITH_ITEMS, inner
from pilot.train.script.statements import statements_in, without_owners
from pilot.train.state.training import Training

_BACKWARD = "backward"
_STEPS = {"step"}


class BeforeItsStep:
    """Looks for one session. ``training``: its optimizers, by name."""

    def __init__(self, training: Training) -> None:
        self._training = training
        self._told = not training.steppers.apart

    def look(self, frames: Sequence[FrameType]) -> None:
        """Tell once. ``frames``: the running functions, of which the last one steps."""
        if self._told or not frames:
            return
        batch = _Batch(frames[-1], self._training.steppers.optimizers)
        for at, name in batch.steps.items():
            if names := sorted(batch.computed_before(at, name) & batch.used_after(at)):
                self._told = True
                refusal.note(
                    f"the script computes {', '.join(names)} before the step of {name!r} with what that changes, and"
                    " uses it after it, for another step of the same batch: if a node dies between the two, the batch"
                    f" runs again with the parameters after the first, and trains otherwise: step {name!r} last, or"
                    " compute that after its step"
                )
                return


class _Batch:
    """The statements of a function's innermost loop, or of all of it; ``steps``: which of them step what, by name."""

    def __init__(self, frame: FrameType, optimizers: Mapping[str, torch.optim.Optimizer]) -> None:
        self._frame = frame
        self._trained = {
            name: {id(p) for group in one.param_groups for p in group["params"]} for name, one in optimizers.items()
        }
        heads = loop_code.heads(frame.f_code, running_at(frame))
        code = frame.f_code
        self._statements = loop_code.statements_of(code, heads[-1]) if heads else statements_in(instructions(code))
        self.steps: dict[int, str] = {}
        for at, one in enumerate(self._statements):
            names = one.texts & optimizers.keys()
            if len(names) == 1 and loop_code.uses_session(frame, one, _STEPS):
                self.steps[at] = names.pop()

    def computed_before(self, at: int, name: str) -> set[str]:
        """Tensors that come from what the statement ``at`` steps."""
        found = set[str]()
        for one in self._statements[:at]:
            if one.reads & found or any(self._is_of(path, name) for path in without_owners(one.reads)):
                found |= one.sets
            elif not one.adds_to:
                found -= one.sets
        return {path for path in found if _has_tensors(_held(self._frame, path))}

    def used_after(self, at: int) -> set[str]:
        """What later steps of the batch need that was there before."""
        last, found = max(self.steps), set[str]()
        for number in range(last, at, -1):
            one = self._statements[number]
            if number in self.steps or _BACKWARD in one.attributes:
                found |= one.reads
            elif one.sets & found:
                found = (found - (one.sets - one.adds_to)) | one.reads
        return found

    def _is_of(self, path: str, name: str) -> bool:
        """Whether it is a parameter, or has some, that this optimizer steps; or is a method of what has."""
        owner = path.rpartition(".")[0]
        value = _held(self._frame, path)
        if value is None and owner not in self._frame.f_code.co_varnames[:1]:  # a method of self may do anything
            value = _held(self._frame, owner)
        parameters = value.parameters() if isinstance(value, nn.Module) else [value]
        return any(id(one) in self._trained[name] for one in parameters)


def _held(frame: FrameType, path: str) -> Any:
    """The value of a variable, or of an attribute of an object in one, also if that is a module's part."""
    variable, *names = path.split(".")
    value = loop_code.value_of(frame, variable)
    for name in names:
        parts = {**value._parameters, **value._modules} if isinstance(value, nn.Module) else {}
        value = parts.get(name, getattr(value, "__dict__", {}).get(name))
    return value


def _has_tensors(value: Any) -> bool:
    if isinstance(value, WITH_ITEMS):
        return any(_has_tensors(one) for _, one in inner(value))
    return isinstance(value, torch.Tensor) and not isinstance(value, nn.Parameter)
