"""What travels and is loaded beside what ``state_dict`` and ``load_state_dict`` do by themselves.

* Buffers get the shapes that they have in the state: a bank of features grows while it is filled, and the ranges of a
  quantizer get a shape with the first batch.
* Buffers that ``state_dict()`` leaves out (``persistent=False``), of the models and of tracked modules, are part of the
  state like the others.
* A state travels, and is saved, in host memory, and whoever takes it over computes with its tensors where the others
  do. Models put theirs where they belong, and so do optimizers (:mod:`pilot.train.state.optimizer_state`); here it is
  noted what else a script keeps on a GPU.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, Protocol

import torch
from torch import nn

from pilot.train.node.devices import own_device

Unsaved = dict[str, dict[str, torch.Tensor | None]]
"""By the module's path and the buffer's name."""
Keys = list[Any]
"""What leads to a value within nested containers."""


class Stateful(Protocol):
    """What ``session.track`` accepts."""

    def state_dict(self) -> dict[str, Any]:
        """Its state, of types that :mod:`pilot.checkpoint.tree` can store."""

    def load_state_dict(self, state_dict: dict[str, Any]) -> Any:
        """Take over a state."""


def load(state: Mapping[str, Any], into: Stateful) -> None:
    """Give buffers the shapes that they have in ``state``, and load it. (Parameters keep theirs.)"""
    for path, module in into.named_modules() if isinstance(into, nn.Module) else ():
        for key, buffer in module._buffers.items():
            given = state.get(f"{path}.{key}" if path else key)
            if isinstance(given, torch.Tensor) and buffer is not None and buffer.shape != given.shape:
                buffer.data = torch.empty(given.shape, dtype=buffer.dtype, device=buffer.device)
    into.load_state_dict(dict(state))


def filled(held: Any, value: Any) -> Any:
    """``value``, in ``held`` if that is a list, set or dict of the same kind: a variable may refer to it, too."""
    if type(held) is not type(value) or not isinstance(held, list | set | dict):
        return value
    held.clear()
    held.extend(value) if isinstance(held, list) else held.update(value)
    return held


def unsaved(model: nn.Module, tracked: Mapping[str, object]) -> Unsaved:
    """The buffers of ``model`` and of ``tracked`` modules that ``state_dict()`` leaves out, not copied."""
    return {path: dict(its) for path, module in _modules(model, tracked) if (its := list(unsaved_of(module)))}


def put_unsaved(state: Unsaved, model: nn.Module, tracked: Mapping[str, object]) -> None:
    """Take over what :func:`unsaved` gave."""
    for path, module in _modules(model, tracked):
        for name, value in state.get(path, {}).items():
            _put(module, name, value)


def _modules(model: nn.Module, tracked: Mapping[str, object]) -> Iterator[tuple[str, nn.Module]]:
    yield from model.named_modules()
    for name, one in tracked.items():
        if isinstance(one, nn.Module):
            yield from one.named_modules(prefix=f"tracked {name}")


def unsaved_of(module: nn.Module) -> Iterator[tuple[str, torch.Tensor | None]]:
    """Return those of ``module`` itself, by name. (torch.jit saves all buffers.)"""
    if isinstance(module, torch.jit.ScriptModule):
        return
    for name in sorted(module._non_persistent_buffers_set & module._buffers.keys()):
        buffer = module._buffers[name]
        yield name, None if buffer is None else buffer.detach()


def _put(module: nn.Module, name: str, value: torch.Tensor | None) -> None:
    """A buffer of the same shape stays the same tensor: modules may share it. Forward may have made one elsewhere."""
    held = module._buffers.get(name)
    if value is None or held is None or held.is_inference() or _form(held) != _form(value):
        value = None if value is None else value.to(_device(module, held), copy=True)
        module.register_buffer(name, value, persistent=False)
    else:
        held.data.copy_(value)


def _form(tensor: torch.Tensor) -> tuple[torch.Size, torch.dtype]:
    return tensor.shape, tensor.dtype


def _device(module: nn.Module, held: torch.Tensor | None) -> torch.device | None:
    """Where a tensor belongs that came from another rank, or from a file."""
    tensors = chain([held], module._parameters.values(), module._buffers.values())
    return next((one.device for one in tensors if one is not None), None)


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
    device = own_device()
    return state if device.type == "cpu" else _moved(state, places, device)


def _moved(value: Any, places: Sequence[Keys], device: torch.device) -> Any:
    if not places:
        return value
    if isinstance(value, torch.Tensor):
        return value.to(device)
    inner = {key: [keys[1:] for keys in places if keys[0] == key] for key in dict.fromkeys(keys[0] for keys in places)}
    if isinstance(value, Mapping):
        return type(value)({key: _moved(one, inner.get(key, []), device) for key, one in value.items()})  # type: ignore[call-arg]  # a Mapping's constructor is not known
    return type(value)(_moved(one, inner.get(number, []), device) for number, one in enumerate(value))
