"""Restores the optimizers' states after a void step: a script may scale a momentum, or replace it, after
``session.step``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

from pilot.checkpoint import checksums
from pilot.checkpoint.shards import local_of
from pilot.checkpoint.tree import copied
from pilot.train.state.on_device import tensors_in
from pilot.train.state.stepper import Steppers

Restore = Callable[[], Any]
"""Returns the value as it was, the same object."""


class OptimizerStates:
    """The states of all parameters in all optimizers; see :class:`~pilot.train.steps.rollback.Rollback`. Handled like
    large values: few scripts change them. Copies are in host memory, because a GPU may have no space for them.
    """

    name = "the optimizers' states"
    small = False

    def __init__(self, steppers: Steppers) -> None:
        self._steppers = steppers
        self.changes = False
        self.bits_before: Any = None
        self._marked: list[tuple[torch.optim.Optimizer, Restore]] = []

    def bits(self) -> Any:
        return [_bits(one.state) for one in self._optimizers()]

    def mark(self) -> None:
        self._marked = [(one, _kept(one.state)) for one in self._optimizers()]

    def back(self) -> None:
        for optimizer, restore in self._marked:
            if optimizer.state is not (state := restore()):
                optimizer.state = state

    def forget(self) -> None:
        self._marked = []

    def _optimizers(self) -> Iterator[torch.optim.Optimizer]:
        yield from self._steppers.optimizers.values()


def _bits(state: Any) -> Any:
    found = [tensor for _, tensor in tensors_in(state, [])]
    return _outline(state), checksums.of_tensors(found)


def _outline(value: Any) -> Any:
    """What is not in tensors."""
    if isinstance(value, torch.Tensor):
        return value.shape
    if isinstance(value, dict):
        return [(id(key) if isinstance(key, torch.Tensor) else key, _outline(one)) for key, one in value.items()]
    if isinstance(value, list | tuple):
        return [_outline(one) for one in value]
    return value.tobytes() if isinstance(value, np.ndarray) else value


def _kept(value: Any) -> Restore:
    """Containers and tensors stay the same objects, because the optimizer may share them."""
    if isinstance(value, torch.Tensor):
        return _tensor_kept(value)
    if isinstance(value, dict):
        return _dict_kept(value)
    if isinstance(value, list):
        return _list_kept(value)
    copy = copied(value)
    return lambda: copy


def _tensor_kept(tensor: torch.Tensor) -> Restore:
    copy = local_of(tensor).detach().to("cpu", copy=True)

    def restore() -> torch.Tensor:
        own = local_of(tensor).data
        if own.shape != copy.shape:
            tensor.data = copy.to(tensor.device)
        else:
            own.copy_(copy)
        return tensor

    return restore


def _dict_kept(held: dict[Any, Any]) -> Restore:
    inner = {key: _kept(one) for key, one in held.items()}

    def restore() -> dict[Any, Any]:
        values = {key: one() for key, one in inner.items()}
        held.clear()
        held.update(values)
        return held

    return restore


def _list_kept(held: list[Any]) -> Restore:
    inner = [_kept(one) for one in held]

    def restore() -> list[Any]:
        held[:] = [one() for one in inner]
        return held

    return restore
