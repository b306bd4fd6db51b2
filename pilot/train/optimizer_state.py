"""Takes over an optimizer's state bit for bit, and what the optimizer keeps in attributes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
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
from pilot.train import rng


def parameters_of(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """The parameters of all groups, in the order of ``state_dict``."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


CONSTANT = (Enum, type, torch.dtype, FunctionType, BuiltinFunctionType)
"""What an option of a group may be that cannot be stored, and need not be: the script gives the same to all ranks."""


def state_of(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """``optimizer.state_dict()`` without constants in its groups."""
    state = optimizer.state_dict()
    if any(_constants(optimizer)):
        state = state | {"param_groups": [_without_constants(group) for group in state["param_groups"]]}
    return state


def _constants(optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
    """Of each group."""
    return [{key: one for key, one in group.items() if isinstance(one, CONSTANT)} for group in optimizer.param_groups]


def _without_constants(group: Mapping[str, Any]) -> dict[str, Any]:
    return {key: one for key, one in group.items() if not isinstance(one, CONSTANT)}


Strides = list[tuple[list[Any], list[int]]]
"""Strides of tensors in an optimizer's state, by the keys that lead to each."""


def strides_of(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> Strides:
    """Strides that :func:`take_over` could not infer (a matrix of eigenvectors is stored by columns): kernels sum in
    memory order, so a rank with different strides would differ in the last bits.
    """
    parameters = parameters_of(optimizer)
    return [
        (keys, list(tensor.stride()))
        for index, its in state["state"].items()
        for keys, tensor in _tensors([index], its)
        if not _is_usual(tensor, parameters[index] if _is_place(index) else None)
    ]


def take_over(optimizer: torch.optim.Optimizer, state: dict[str, Any], strides: Strides) -> None:
    """Like ``optimizer.load_state_dict(state)``, but preserving the dtypes and strides of ``state``.  torch casts a
    parameter's state to the parameter's dtype (float32 masters of bfloat16 parameters would be rounded), and keeps a
    tensor's strides, which are lost if it was sent as a block of bytes (fused kernels read state and parameter in
    memory order). It also takes texts and arrays apart, as it does lists. ``strides``: from :func:`strides_of`.
    """
    if any(own := _constants(optimizer)):
        state = state | {"param_groups": [a | b for a, b in zip(state["param_groups"], own, strict=True)]}
    defaults = dict(optimizer.defaults)
    optimizer.load_state_dict(state | {"state": _without_texts(state["state"])})
    optimizer.defaults = defaults  # torch adds some, which groups that are added later then have on this rank only
    parameters = parameters_of(optimizer)
    known = {tuple(keys): its for keys, its in strides}
    for index, given in state["state"].items():
        its = parameters[index] if _is_place(index) else None
        key = index if its is None else its
        states: dict[Any, Any] = optimizer.state
        states[key] = _as_given(given, states[key], its, known, (index,))


def _without_texts(value: Any) -> Any:
    """With None for texts and arrays."""
    if isinstance(value, dict):
        return {key: _without_texts(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map(_without_texts, value))
    return None if isinstance(value, str | np.ndarray) else value


def _is_place(key: object) -> bool:
    """Whether it is a parameter's index; some optimizers keep shared state under a name."""
    return isinstance(key, int)


def _tensors(keys: list[Any], value: Any) -> Iterator[tuple[list[Any], torch.Tensor]]:
    if isinstance(value, torch.Tensor):
        yield keys, value
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _tensors([*keys, key], inner)
    elif isinstance(value, list | tuple):
        for number, inner in enumerate(value):
            yield from _tensors([*keys, number], inner)


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
    which may have been edited since a checkpoint. Values that cannot be stored are left alone (the script is told of
    those that change), unless they are tensors by module or parameter, which change.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer
        self._first = copied({name: value for name, value, _ in self._now()})
        self._first_encoded = {name: encode({name: value}) for name, value in self._first.items()}
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
        first = self._first_encoded
        return {name: value for name, value, now in self._now() if name not in first or not _equal(now, first[name])}

    def restore(self, changed: Mapping[str, Any]) -> None:
        """Take over what :meth:`capture` gave."""
        begun = {name: self._first[name] for name in self.capture() if name in self._first}
        for name, state in copied(begun | dict(changed)).items():
            setattr(self._optimizer, name, rng.with_state(getattr(self._optimizer, name, None), state))

    def others(self) -> Iterator[tuple[str, Any]]:
        """What else is in its attributes, by name: objects, deques, what is not in the state."""
        kept = {name for name, _, _ in self._now()}
        yield from ((name, one) for name, one in vars(self._optimizer).items() if name not in _of_torch() | kept)

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
        return source.ctypes.data or id(source)
    local = local_of(source)
    return (local.untyped_storage().data_ptr() if local.layout is torch.strided else 0) or id(source)


def _equal(one: Encoded, other: Encoded) -> bool:
    return one.tree == other.tree and all(
        a.dtype == b.dtype and a.shape == b.shape and np.array_equal(a.data, b.data)
        for a, b in zip(one.leaves, other.leaves, strict=True)
    )


def _as_given(
    given: Any,
    loaded: Any,
    parameter: torch.Tensor | None,
    strides: Mapping[tuple[Any, ...], list[int]],
    keys: tuple[Any, ...],
) -> Any:
    match given:
        case str() | np.ndarray():
            return copied(given)
        case torch.Tensor():
            return _laid_out(given, loaded, parameter, strides.get(keys))
        case Mapping():
            rows = (
                (key, _as_given(value, loaded[key], parameter, strides, (*keys, key))) for key, value in given.items()
            )
            return type(loaded)(rows)
        case list() | tuple():
            pairs = enumerate(zip(given, loaded, strict=True))
            return type(loaded)(_as_given(a, b, parameter, strides, (*keys, number)) for number, (a, b) in pairs)
    return loaded


def _laid_out(
    given: torch.Tensor, loaded: torch.Tensor, parameter: torch.Tensor | None, strides: list[int] | None
) -> torch.Tensor:
    given = given.detach().to(loaded.device)
    if strides is not None:
        return torch.empty_strided(given.shape, strides, dtype=given.dtype, device=given.device).copy_(given)
    if parameter is None or given.shape != parameter.shape:
        return given.clone() if given.dtype != loaded.dtype else loaded
    if given.dtype == loaded.dtype and loaded.stride() == parameter.stride():
        return loaded
    return torch.empty_like(parameter, dtype=given.dtype, requires_grad=False).copy_(given)
