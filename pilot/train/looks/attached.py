"""What a script has put on the session's parts: attributes of parameters (``p.average``), hooks and functions of
schedules, which may have a state, and what optimizers keep in attributes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain
from types import FrameType, FunctionType
from typing import Any

from torch import nn
from torch.optim.lr_scheduler import LRScheduler

from pilot.train.looks.marks import FUNCTIONS, Place
from pilot.train.script.objects import WITH_ITEMS, inner
from pilot.train.state.stepper import Steppers

_HOOKS = (
    *("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks"),
    *("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks"),
)
HOOKS_OF_PARAMETERS = ("_backward_hooks", "_post_accumulate_grad_hooks")
_DEPTH = 4
"""How many schedules may be within each other."""


def attached(model: nn.Module, steppers: Steppers) -> Iterator[tuple[int, str, Any]]:
    """Whose it is, its name, and it; without :func:`functions_of`."""
    for path, module in model.named_modules():
        for key, parameter in module._parameters.items():
            if parameter is not None:
                yield from ((id(parameter), f"{path}.{key}.{name}", one) for name, one in vars(parameter).items())
    yield from ((id(one), f"optimizer.{name}", value) for one, name, value in steppers.other_attributes())


def functions_of(model: nn.Module, steppers: Steppers) -> Iterator[tuple[str, Any]]:
    """Hooks and functions of schedules, by name; of bound methods their objects."""
    holders = [*model.named_modules()]
    optimizers = (("optimizer", one) for one in steppers.optimizers.values())
    for path, one in chain(holders, optimizers):
        for kind in _HOOKS:
            yield from ((f"{path or 'model'}.hook", _holder(hook)) for hook in vars(one).get(kind, {}).values())
    for path, module in holders:
        for key, parameter in module._parameters.items():
            for kind in HOOKS_OF_PARAMETERS:
                hooks = getattr(parameter, kind, None) or {}
                yield from ((f"{path}.{key}.hook".lstrip("."), _holder(hook)) for hook in hooks.values())
    for schedule in steppers.schedulers.values():
        yield from _of_schedule("scheduler", schedule, _DEPTH)


def _holder(function: Any) -> Any:
    return getattr(function, "__self__", function)


def _of_schedule(name: str, held: Any, depth: int) -> Iterator[tuple[str, Any]]:
    """Not objects that it calls as functions, whose attributes torch saves."""
    values = inner(held) if isinstance(held, WITH_ITEMS) else getattr(held, "__dict__", {}).items()
    for key, value in values:
        path = f"{name}[{key!r}]" if isinstance(held, WITH_ITEMS) else f"{name}.{key}"
        if isinstance(value, (*FUNCTIONS, partial)):
            if not isinstance(_holder(value), LRScheduler):  # one that passes a method of its own
                yield path, _holder(value)
        elif depth and isinstance(value, (*WITH_ITEMS, LRScheduler)):
            yield from _of_schedule(path, value, depth - 1)


def of_running(function: Any, frames: Sequence[FrameType]) -> Collection[Place]:
    """Variables of its closure that are those of running functions, with which they are looked at."""
    found = set()
    if isinstance(function, FunctionType):
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            with suppress(ValueError):  # it has no value yet
                value = cell.cell_contents
                if any(_has(frame, name) and frame.f_locals.get(name) is value for frame in frames):
                    found.add((id(function), f".{name}"))
    return found


def _has(frame: FrameType, name: str) -> bool:
    return name in frame.f_code.co_cellvars or name in frame.f_code.co_freevars
