"""Loads a state into what has one, also where a module's buffers have other shapes: a bank of features grows while it
is filled, and the ranges of a quantizer get a shape with the first batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import torch
from torch import nn


class _Loads(Protocol):
    def load_state_dict(self, state_dict: dict[str, Any]) -> Any: ...


def load(state: Mapping[str, Any], into: _Loads) -> None:
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
