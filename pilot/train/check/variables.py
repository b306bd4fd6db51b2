"""What the variables of a checked script hold, by name: values, not code. They explain a difference; and a module that
is trained beside the session's is a difference itself.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn

from pilot.train.check.values import MODULE, VARIABLE, Values, flatten
from pilot.train.script.refusal import is_of_a_library
from pilot.train.state.training import Training

_DEPTH = 3
_MOST = 2000


def of_script(training: Training) -> Values:
    """What its running functions and its main module hold now."""
    values: Values = {}
    ours = {id(one) for one in training.model.parameters()}
    seen = {id(training), *(id(one) for one in training.tracked.values())}
    for name, value in _variables():
        for place, one in _held(value, name, _DEPTH, seen):
            if len(values) > _MOST:
                return values
            if isinstance(one, nn.Module):
                if not ours.intersection(id(parameter) for parameter in one.parameters()):
                    flatten(dict(one.named_parameters()), f"{MODULE}{place}", values)
            else:
                flatten(one, f"{VARIABLE}{place}", values, 1)
    return values


def _variables() -> Iterator[tuple[str, Any]]:
    frame: types.FrameType | None = sys._getframe()
    while frame is not None:
        if not is_of_a_library(frame.f_code.co_filename) and frame.f_locals is not frame.f_globals:
            yield from list(frame.f_locals.items())
        frame = frame.f_back
    for name, value in list(vars(sys.modules["__main__"]).items()):
        if not name.startswith("__"):
            yield name, value


def _held(value: Any, name: str, depth: int, seen: set[int]) -> Iterator[tuple[str, Any]]:
    """Numbers, tensors, and modules in ``value``; of other objects only the script's own are looked into."""
    if isinstance(value, bool | int | float | str) or value is None:
        yield name, value
        return
    if id(value) in seen or not depth:
        return
    seen.add(id(value))
    if isinstance(value, torch.Tensor | nn.Module):
        yield name, value
    elif isinstance(value, Mapping):
        for key, one in list(value.items()):
            yield from _held(one, f"{name}[{key!r}]", depth - 1, seen)
    elif isinstance(value, list | tuple | set):
        for number, one in enumerate(value):
            yield from _held(one, f"{name}[{number}]", depth - 1, seen)
    elif _is_its_own(value):
        for key, one in list(getattr(value, "__dict__", {}).items()):
            yield from _held(one, f"{name}.{key}", depth - 1, seen)


def _is_its_own(value: Any) -> bool:
    """Whether its class is the script's."""
    if isinstance(value, type | types.ModuleType | types.FunctionType):
        return False
    module = sys.modules.get(type(value).__module__)
    file = getattr(module, "__file__", None)
    return file is not None and not is_of_a_library(file)
