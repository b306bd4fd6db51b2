"""Collects values to compare between runs, by name: numbers, sketches of tensors (random projections, by which tensors
of different processes can be compared), and texts for anything else. There are values of declared objects; of the
script's variables, which explain a difference; and of modules that the script trains beside the session's.
"""

from __future__ import annotations

import sys
import types
import zlib
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import nn

from pilot.train.gradients.sketch import projected
from pilot.train.script.refusal import is_of_a_library
from pilot.train.state.training import Training

Value = list[float] | float | int | bool | str | None
"""A sketch: the norm, then the projections; a number; or anything else as text."""
Values = dict[str, Value]

REPORTED, VARIABLE, MODULE = "reported ", "variable ", "module "
"""Prefixes of values that are not declared: the script's reports, its variables, and parameters of its modules."""
_LARGEST = 10_000
_DEPTH, _MOST = 3, 2000
"""The largest depth and number of the script's variables."""
_SAMPLE = 1 << 16
"""How many numbers of one tensor are compared in each step, at most."""


def is_declared(name: str) -> bool:
    """Return whether this is the name of a declared value."""
    return not name.startswith((VARIABLE, REPORTED, MODULE))


def of_declared(training: Training) -> Values:
    """Return the values of the models, the optimizers, ``session.state`` and tracked objects."""
    model, stepped = training.model, training.steppers.capture()
    trained = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    tensors = [*model.named_parameters(), *model.named_buffers()]
    held: list[tuple[str, object]] = [
        *((f"the {'parameter' if name in trained else 'buffer'} {name}", tensor) for name, tensor in tensors),
        *((f"the {part}'s ", stepped[part]) for part in ("optimizer", "scheduler", "scaler") if part in stepped),
        ("session.state", training.user),
        *((f"the tracked object {name}: ", one.state_dict()) for name, one in training.tracked.items()),
    ]
    return {place: value for name, one in held for place, value in _values_in(one, name).items()}


def of_variables(training: Training) -> Values:
    """Return the values of variables in the script's running functions and its main module."""
    values: Values = {}
    ours = {id(one) for one in training.model.parameters()}
    seen = {id(one) for one in training.tracked.values()}

    def is_new(held: object) -> bool:
        """Return whether ``held`` is an object of a class of the script that was not visited yet."""
        if id(held) in seen or not _is_its_own(held):
            return False
        seen.add(id(held))
        return True

    found = (one for name, value in _variables() for one in _leaves(value, name, _DEPTH, is_new))
    for name, one in islice(found, _MOST):
        if not isinstance(one, nn.Module):
            values[f"{VARIABLE}{name}"] = _of(one)
        elif id(one) not in seen and not ours.intersection(id(parameter) for parameter in one.parameters()):
            values |= _values_in(dict(one.named_parameters()), f"{MODULE}{name}")
    return values


def _values_in(held: object, name: str) -> Values:
    """Return the values in ``held`` by name."""
    return {place: _of(one) for place, one in _leaves(held, name)}


def _leaves(
    held: Any, name: str, depth: int = 12, enters: Callable[[object], bool] = lambda _: False
) -> Iterator[tuple[str, Any]]:
    """Yield the values in ``held`` by name, from collections, and from objects for which ``enters`` returns True."""
    if isinstance(held, bool | int | float | str | np.ndarray | np.generic | torch.Tensor | nn.Module) or held is None:
        yield name, held
    elif isinstance(held, set | frozenset) and len(held) < _LARGEST:
        yield name, str(sorted(map(repr, held)))
    elif depth:
        for place, one in _parts(held, enters):
            yield from _leaves(one, f"{name}{place}", depth - 1, enters)


def _of(leaf: Any) -> Value:
    """Return the comparable value of a number, text, array or tensor."""
    if isinstance(leaf, torch.Tensor):
        return _of_tensor(leaf)
    if isinstance(leaf, np.ndarray | np.generic):
        numeric = leaf.dtype.kind in "fiubc"
        return _of_tensor(torch.from_numpy(np.ascontiguousarray(leaf))) if numeric else f"{leaf.dtype}"
    kind = next((one for one in (bool, int, float) if isinstance(leaf, one)), str)  # enumerations become plain
    is_large = kind is int and abs(leaf) >= 1 << 62
    return str(leaf) if is_large else kind(leaf)


def _parts(held: Any, enters: Callable[[object], bool]) -> Iterator[tuple[str, Any]]:
    if isinstance(held, Mapping | list | tuple):
        items = held.items() if isinstance(held, Mapping) else enumerate(held)
        yield from ((f"[{key!r}]", one) for key, one in list(items) if len(held) < _LARGEST)
    elif enters(held):
        yield from ((f".{key}", one) for key, one in list(getattr(held, "__dict__", {}).items()))


@torch.no_grad()
def _of_tensor(tensor: torch.Tensor) -> Value:
    """Return a sketch of ``tensor``, a checksum if it holds no floats, or its single number."""
    if tensor.layout != torch.strided or tensor.device.type == "meta":
        return f"{tensor.layout}"
    exact = _sampled(tensor.detach()).cpu()
    if exact.is_complex():
        exact = torch.view_as_real(exact.resolve_conj())
    if not exact.is_floating_point():
        numbers = exact.resolve_neg().contiguous().reshape(-1)
        checksum = zlib.crc32(numbers.view(torch.uint8).numpy().tobytes() if len(numbers) else b"")
        return f"{tuple(tensor.shape)} {checksum}"
    wide = exact.double().reshape(-1)
    return [float(wide.norm()), *projected(wide).tolist()] if len(wide) != 1 else float(wide)


def _sampled(tensor: torch.Tensor) -> torch.Tensor:
    """Return ``tensor``, or an evenly spaced sample of a large one, so that a step's sketches take little time."""
    while tensor.numel() > _SAMPLE and tensor.dim():
        longest = max(range(tensor.dim()), key=tensor.shape.__getitem__)
        spacing = min(tensor.shape[longest], -(-tensor.numel() // _SAMPLE))
        tensor = tensor.movedim(longest, 0)[::spacing]
    return tensor


def _variables() -> Iterator[tuple[str, Any]]:
    frame: types.FrameType | None = sys._getframe()
    while frame is not None:
        if not is_of_a_library(frame.f_code.co_filename) and frame.f_locals is not frame.f_globals:
            yield from list(frame.f_locals.items())
        frame = frame.f_back
    for name, value in list(vars(sys.modules["__main__"]).items()):
        if not name.startswith("__"):
            yield name, value


def _is_its_own(held: object) -> bool:
    """Return whether the class of ``held`` is defined by the script."""
    if isinstance(held, type | types.ModuleType | types.FunctionType):
        return False
    file = getattr(sys.modules.get(type(held).__module__), "__file__", None)
    return file is not None and not is_of_a_library(file)
