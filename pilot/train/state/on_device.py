"""Which tensors of a state were on a GPU: it travels, and is saved, in host memory, and whoever takes it over computes
with them where the others do.

Models put theirs where they belong, and so do optimizers (:mod:`pilot.train.state.optimizer_state`); this is about what
else a script keeps.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

Keys = list[Any]
"""What leads to a value within nested containers."""


def tensors_in(value: Any, keys: Keys) -> Iterator[tuple[Keys, torch.Tensor]]:
    """All tensors in ``value``, to which ``keys`` lead."""
    if isinstance(value, torch.Tensor):
        yield keys, value
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from tensors_in(inner, [*keys, key])
    elif isinstance(value, list | tuple):
        for number, inner in enumerate(value):
            yield from tensors_in(inner, [*keys, number])


def places_in(state: Mapping[str, Any]) -> list[Keys]:
    """Where ``state`` has tensors that are not in host memory."""
    return [keys for keys, tensor in tensors_in(state, []) if tensor.device.type != "cpu"]


def put_back(state: Any, places: Sequence[Keys]) -> Any:
    """``state`` with those tensors on this process's GPU, if it has one: the result of :func:`places_in`, elsewhere."""
    device = torch.accelerator.current_accelerator()
    return state if device is None else _moved(state, places, device)


def _moved(value: Any, places: Sequence[Keys], device: torch.device) -> Any:
    if not places:
        return value
    if isinstance(value, torch.Tensor):
        return value.to(device)
    inner = {key: [keys[1:] for keys in places if keys[0] == key] for key in dict.fromkeys(keys[0] for keys in places)}
    if isinstance(value, Mapping):
        return type(value)({key: _moved(one, inner.get(key, []), device) for key, one in value.items()})  # type: ignore[call-arg]  # a Mapping's constructor is not known
    return type(value)(_moved(one, inner.get(number, []), device) for number, one in enumerate(value))
