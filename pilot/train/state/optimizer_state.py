"""Takes over an optimizer's state bit for bit, and what the optimizer keeps in attributes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cache
from types import BuiltinFunctionType, FunctionType
from typing import Any

import numpy as np
import torch
from torch.nn.parameter import is_lazy

from pilot.checkpoint.shards import local_of
from pilot.checkpoint.tree import Encoded, Unstorable, copied, encode
from pilot.core.errors import UserError
from pilot.train.data import rng
from pilot.train.state.loading import Keys, tensors_in


def parameters_of(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """The parameters of all groups, in the order of ``state_dict``."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


CONSTANT = (Enum, type, torch.dtype, FunctionType, BuiltinFunctionType)
"""What an option of a group may be that cannot be stored, and need not be: the script gives the same to all ranks."""


def state_of(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """``optimizer.state_dict()`` without constants in its groups."""
    state = optimizer.state_dict()
    return state | {"param_groups": [without_constants(group) for group in state["param_groups"]]}


def _constants(optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
    """Of each group."""
    return [{key: one for key, one in group.items() if isinstance(one, CONSTANT)} for group in optimizer.param_groups]


def without_constants(group: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a group that can be stored."""
    return {key: one for key, one in group.items() if not isinstance(one, CONSTANT)}


Layout = list[tuple[Keys, list[int] | None, bool | None]]
"""Of tensors in an optimizer's state: what leads to each, its strides, and whether it is on its parameter's device (or
else in host memory). None: as :func:`take_over` infers it."""


def layout_of(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> Layout:
    """The layout that :func:`take_over` could not infer.

    A matrix of eigenvectors is stored by columns: kernels sum in memory order, so a rank with different strides would
    differ in the last bits. Of a parameter's state torch moves all to the parameter's device, but for its number of
    steps. NAdam has products in host memory, ASGD its steps on the GPU, and where a number is decides how it is
    rounded.
    """
    on_device = {
        id(p): bool(group.get("capturable") or group.get("fused"))
        for group in optimizer.param_groups
        for p in group["params"]
    }
    parameters, layout = parameters_of(optimizer), Layout()
    for index, its in state["state"].items():
        parameter = parameters[index] if isinstance(index, int) else None  # some keep shared state under a name
        for keys, tensor in tensors_in(its, [index]):
            strides = None if _is_usual(tensor, parameter) else list(tensor.stride())
            is_beside = tensor.device.type != "cpu"
            if parameter is None or parameter.device.type == "cpu":
                is_inferred = True
            else:
                is_inferred = is_beside == (keys[-1] != "step" or on_device[id(parameter)])
            if strides is not None or not is_inferred:
                layout.append((keys, strides, None if is_inferred else is_beside))
    return layout


def take_over(optimizer: torch.optim.Optimizer, state: dict[str, Any], layout: Layout) -> None:
    """Like ``optimizer.load_state_dict(state)``, but preserving the dtypes and strides of ``state``.  torch casts a
    parameter's state to the parameter's dtype (float32 masters of bfloat16 parameters would be rounded), and keeps a
    tensor's strides, which are lost if it was sent as a block of bytes (fused kernels read state and parameter in
    memory order). It also takes texts and arrays apart, as it does lists. ``layout``: from :func:`layout_of`. The
    groups stay the same dicts: the script may have one in a variable.
    """
    groups = zip(state["param_groups"], _constants(optimizer), strict=True)
    state = state | {"param_groups": [stored | constants for stored, constants in groups]}
    defaults = dict(optimizer.defaults)
    _load(optimizer, state | {"state": _without_texts(state["state"])})
    vars(optimizer)["_opt_called"] = True  # by others; torch warns of a schedule that is stepped before its optimizer
    optimizer.defaults = defaults  # torch adds some, which groups that are added later then have on this rank only
    parameters = parameters_of(optimizer)
    placing = _Placing({tuple(keys): its for keys, *its in layout})
    for index, given in state["state"].items():
        its = parameters[index] if isinstance(index, int) else None
        key = index if its is None else its
        states: dict[Any, Any] = optimizer.state
        states[key] = placing.as_given(given, states[key], its, (index,))


def _load(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    groups, states = optimizer.param_groups, optimizer.state
    optimizer.load_state_dict(state)
    for group, loaded in zip(groups, optimizer.param_groups, strict=True):
        if group is not loaded:
            group.clear()
            group.update(loaded)
    if type(optimizer).load_state_dict is torch.optim.Optimizer.load_state_dict:
        states.clear()
        states.update(optimizer.state)
        optimizer.param_groups, optimizer.state = groups, states  # an optimizer within it has them, too
    else:
        optimizer.param_groups[:] = groups  # an optimizer within it may have made this list


def _without_texts(value: Any) -> Any:
    """With None for texts and arrays."""
    if isinstance(value, dict):
        return {key: _without_texts(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map(_without_texts, value))
    return None if isinstance(value, str | np.ndarray) else value


def _is_usual(tensor: torch.Tensor, parameter: torch.Tensor | None) -> bool:
    """Whether it has its parameter's strides, if it has its shape, or else is contiguous; tensors with gaps become
    contiguous."""
    if parameter is not None and parameter.shape == tensor.shape:
        usual = tensor.stride() == parameter.stride()
    else:
        usual = tensor.is_contiguous()
    return (
        usual or local_of(tensor) is not tensor or torch.empty_like(tensor, device="meta").stride() != tensor.stride()
    )


_OBJECTS = (torch.nn.Module, torch.Tensor)


class OwnAttributes:
    """What an optimizer keeps in its own attributes and not in its state: counters, averages, random generators.

    They are part of the state if they have changed since the session was created. Initial values come from the script,
    which may have been edited since a checkpoint. Values that cannot be stored are left alone, unless they are tensors
    by module or parameter, which change.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer
        self._first = copied({name: value for name, value, _ in self._now()})
        self._by_object = self._tensors_by_object()

    def capture(self) -> dict[str, Any]:
        """The changed attributes, by name."""
        for name, tensors in self._tensors_by_object().items():
            if self._by_object.get(name) != tensors:
                kind = type(self._optimizer).__name__
                raise UserError(
                    f"{kind} keeps tensors by module or parameter in its attribute {name!r} and changes them; nodes"
                    " that join would not get them, and what it computes from a batch (K-FAC's statistics) differs"
                    " between ranks: keep in optimizer.state[parameter] what is computed from p.grad"
                )
        first = {name: encode({name: value}) for name, value in self._first.items()}
        return {name: value for name, value, now in self._now() if name not in first or not _equal(now, first[name])}

    def restore(self, changed: Mapping[str, Any]) -> None:
        """Take over what :meth:`capture` gave."""
        begun = {name: self._first[name] for name in self.capture() if name in self._first}
        for name, state in copied(begun | dict(changed)).items():
            setattr(self._optimizer, name, rng.with_state(getattr(self._optimizer, name, None), state))

    def _tensors_by_object(self) -> dict[str, list[tuple[int, int]]]:
        """Dicts of tensors by module or parameter, by the attribute's name: what changes if these do."""
        found = {}
        for name, one in vars(self._optimizer).items():
            if name in _of_torch() or not isinstance(one, dict) or not isinstance(next(iter(one), None), _OBJECTS):
                continue
            tensors = [t for t in one.values() if isinstance(t, torch.Tensor)]
            found[name] = [(id(t), 0 if t.is_inference() else t._version) for t in tensors]
        return {name: tensors for name, tensors in found.items() if tensors}

    def _now(self) -> Iterator[tuple[str, Any, Encoded]]:
        known: set[int] | None = None
        for name, attribute in vars(self._optimizer).items():
            if name in _of_torch():
                continue
            value = rng.own_state(attribute)
            try:
                its = encode({name: value})
            except Unstorable:
                continue
            if its.leaves and known is None:
                known = self._known()
            if not any(leaf.rows is not None or _memory(leaf.source) in (known or ()) for leaf in its.leaves):
                yield name, value, its

    def _known(self) -> set[int]:
        """The addresses of parameters and of everything in the state."""
        known = {_memory(p) for p in parameters_of(self._optimizer) if not is_lazy(p)}
        return known | {_memory(leaf.source) for leaf in _leaves(dict(enumerate(self._optimizer.state.values())))}


@cache
def _of_torch() -> set[str]:
    """Attributes of torch's own optimizers. Not computed at import time, because torch's first optimizer imports its
    compiler."""
    return {*vars(torch.optim.Optimizer([torch.zeros(())], {})), "_opt_called"}


def _leaves(state: dict[Any, Any]) -> list[Any]:
    try:
        return encode(state).leaves
    except Unstorable:  # the check of the whole state gives a better message
        return []


def _memory(source: Any) -> int:
    """Its address; something without elements has none, and equals nothing else."""
    if isinstance(source, np.ndarray):
        return source.__array_interface__["data"][0] or id(source)
    local = local_of(source)
    return (local.untyped_storage().data_ptr() if local.layout is torch.strided else 0) or id(source)


def _equal(one: Encoded, other: Encoded) -> bool:
    return one.tree == other.tree and all(
        a.dtype == b.dtype and a.shape == b.shape and np.array_equal(a.data, b.data)
        for a, b in zip(one.leaves, other.leaves, strict=True)
    )


@dataclass(frozen=True)
class _Placing:
    """Puts a state's tensors where they were, as they were. ``layout``: strides and home by the keys that lead to each
    tensor."""

    layout: Mapping[tuple[Any, ...], Any]

    def as_given(self, given: Any, loaded: Any, parameter: torch.Tensor | None, keys: tuple[Any, ...]) -> Any:
        """``given`` in place of what torch has made of it, ``loaded``."""
        match given:
            case str() | np.ndarray():
                return copied(given)
            case torch.Tensor():
                return self._laid_out(given, loaded, parameter, keys)
            case Mapping():
                rows = ((key, self.as_given(one, loaded[key], parameter, (*keys, key))) for key, one in given.items())
                return type(loaded)(rows)
            case list() | tuple():
                pairs = enumerate(zip(given, loaded, strict=True))
                return type(loaded)(self.as_given(a, b, parameter, (*keys, number)) for number, (a, b) in pairs)
        return loaded

    def _laid_out(
        self, given: torch.Tensor, loaded: torch.Tensor, parameter: torch.Tensor | None, keys: tuple[Any, ...]
    ) -> torch.Tensor:
        home, (strides, is_beside) = loaded.device, self.layout.get(keys, (None, None))
        if parameter is not None and is_beside is not None:
            home = parameter.device if is_beside else torch.device("cpu")
        given = given.detach().to(home)
        is_alike = (given.dtype, home) == (loaded.dtype, loaded.device)
        if strides is not None:
            return torch.empty_strided(given.shape, strides, dtype=given.dtype, device=home).copy_(given)
        if parameter is None or given.shape != parameter.shape:
            return loaded if is_alike else given.clone()
        if is_alike and loaded.stride() == parameter.stride():
            return loaded
        return torch.empty_like(parameter, dtype=given.dtype, device=home, requires_grad=False).copy_(given)
