"""The optimizer's state, taken over to the last bit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch


def parameters_of(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """Of all groups, in the order in which ``state_dict`` counts them."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def take_over(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """What ``optimizer.load_state_dict(state)`` does, with the dtypes of ``state`` and the parameters' strides.

    torch casts what is kept for a parameter to the parameter's dtype (float32 masters over bfloat16 would be rounded),
    and keeps the strides that a tensor has, which are not the parameter's where it came as a block of bytes (fused
    kernels read both in the order of memory).
    """
    optimizer.load_state_dict(state)
    parameters = parameters_of(optimizer)
    for index, given in state["state"].items():
        parameter = parameters[index]
        optimizer.state[parameter] = _as_given(given, optimizer.state[parameter], parameter)


def _as_given(given: Any, loaded: Any, parameter: torch.Tensor) -> Any:
    match given:
        case torch.Tensor():
            return _like(parameter, given.to(loaded.device)) if _differs(given, loaded, parameter) else loaded
        case Mapping():
            return type(loaded)((key, _as_given(value, loaded[key], parameter)) for key, value in given.items())
        case list() | tuple():
            return type(loaded)(_as_given(a, b, parameter) for a, b in zip(given, loaded, strict=True))
    return loaded


def _differs(given: torch.Tensor, loaded: torch.Tensor, parameter: torch.Tensor) -> bool:
    of_shape = given.shape == parameter.shape
    return given.dtype != loaded.dtype or (of_shape and loaded.stride() != parameter.stride())


def _like(parameter: torch.Tensor, given: torch.Tensor) -> torch.Tensor:
    """A copy of ``given``, laid out as the parameter where it has its shape."""
    if given.shape != parameter.shape:
        return given.detach().clone()
    return torch.empty_like(parameter, dtype=given.dtype, requires_grad=False).copy_(given)
