"""The optimizer's state, taken over to the last bit, and what an optimizer keeps beside it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch.nn.parameter import is_lazy

from pilot.checkpoint.shards import local_of
from pilot.checkpoint.tree import Encoded, Unstorable, copied, encode


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


class OwnAttributes:
    """What an optimizer keeps in attributes of its own and not in its state: counters, averages, a history.

    They are a part of the state as far as they have changed since the session was made. What they begin with is the
    script's, which may have been edited since a checkpoint. What no state can hold stays where it is.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer
        self._first = copied({name: value for name, value, _ in self._now()})
        self._first_encoded = {name: encode({name: value}) for name, value in self._first.items()}

    def capture(self) -> dict[str, Any]:
        """Those that have changed, by name."""
        first = self._first_encoded
        return {name: value for name, value, now in self._now() if name not in first or not _equal(now, first[name])}

    def restore(self, changed: Mapping[str, Any]) -> None:
        """Take over what :meth:`capture` gave."""
        begun = {name: self._first[name] for name in self.capture() if name in self._first}
        for name, value in copied(begun | dict(changed)).items():
            own = getattr(self._optimizer, name, None)
            if isinstance(value, torch.Tensor) and isinstance(own, torch.Tensor):
                value = value.to(own.device)
            setattr(self._optimizer, name, value)

    def _now(self) -> Iterator[tuple[str, Any, Encoded]]:
        known = {_memory(p) for p in parameters_of(self._optimizer) if not is_lazy(p)}
        known |= {_memory(leaf.source) for leaf in _leaves(dict(enumerate(self._optimizer.state.values())))}
        for name, value in vars(self._optimizer).items():
            if name in _OF_TORCH:
                continue
            try:
                its = encode({name: value})
            except Unstorable:
                continue
            if not any(leaf.rows is not None or _memory(leaf.source) in known for leaf in its.leaves):
                yield name, value, its


_OF_TORCH = {*vars(torch.optim.Optimizer([torch.zeros(())], {})), "_opt_called"}


def _leaves(state: dict[Any, Any]) -> list[Any]:
    try:
        return encode(state).leaves
    except Unstorable:  # which the check of the whole state says better
        return []


def _memory(source: Any) -> int:
    """Where it lies; what has no elements lies nowhere, and is like nothing else."""
    if isinstance(source, np.ndarray):
        return source.ctypes.data or id(source)
    local = local_of(source)
    return (local.untyped_storage().data_ptr() if local.layout is torch.strided else 0) or id(source)


def _equal(one: Encoded, other: Encoded) -> bool:
    return one.tree == other.tree and all(
        a.dtype == b.dtype and a.shape == b.shape and np.array_equal(a.data, b.data)
        for a, b in zip(one.leaves, other.leaves, strict=True)
    )


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
