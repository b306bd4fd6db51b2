"""Converts a state for a sharded model: of each tensor, this process's rows.

A state comes either from the process of the same local rank on another node, with the same rows, or from a checkpoint,
with whole tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from pilot.checkpoint import shards
from pilot.train.state.block import encoded
from pilot.train.state.optimizer_state import parameters_of
from pilot.train.state.stepper import Steppers

Wanted = Callable[[str, tuple[int, ...]], shards.Rows | None]
"""See :mod:`pilot.checkpoint.reader`."""


def models_adopted(state: Mapping[str, Any], model: nn.Module) -> dict[str, Any]:
    """``state`` for ``model``, with shards instead of plain tensors where the model has shards."""
    held = model.state_dict()
    return {name: as_held(value, held.get(name)) for name, value in state.items()}


def optimizers_adopted(state: Mapping[str, Any], steppers: Steppers) -> dict[str, Any]:
    """``state`` for the optimizers, whose groups already match the state."""
    if "" in steppers.optimizers:
        return _of_optimizer(state, steppers.optimizers[""])
    return {name: _of_optimizer(one, steppers.optimizers[name]) for name, one in state.items()}


def rows_wanted(model: nn.Module, steppers: Steppers) -> Wanted:
    """By path in a checkpoint: the local rows of each sharded parameter, and of optimizer state with its shape."""
    of_model = {leaf.path: leaf.rows for leaf in encoded({"model": model.state_dict()}).leaves}
    of_parameter: dict[str, shards.Rows | None] = {}
    for name, optimizer in steppers.optimizers.items():
        parameters = parameters_of(optimizer)
        folder = f"optimizer/{name}/state" if name else "optimizer/state"
        of_parameter |= {f"{folder}/{index}": shards.rows_of(one) for index, one in enumerate(parameters)}

    def wanted(path: str, shape: tuple[int, ...]) -> shards.Rows | None:
        rows = of_model.get(path) or of_parameter.get(path.rpartition("/")[0])
        return rows if rows is not None and rows.whole == shape else None

    return wanted


def as_held(value: Any, held: Any) -> Any:
    """``value``, a whole tensor or the local rows, divided like ``held``; anything else is returned unchanged."""
    rows = shards.rows_of(held) if isinstance(held, torch.Tensor) else None
    if rows is None or not isinstance(value, torch.Tensor) or shards.is_sharded(value):
        return value
    if value.shape == (rows.count, *rows.whole[1:]):
        return shards.like(held, value.to(held.device))
    if value.shape == rows.whole:
        return shards.like(held, value[rows.first : rows.first + rows.count].to(held.device, copy=True))
    return value


def _of_optimizer(state: Mapping[str, Any], optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Optimizer state with a parameter's shape is sharded like the parameter."""
    parameters = parameters_of(optimizer)
    kept = {
        index: {key: as_held(value, parameters[index]) for key, value in its.items()}
        for index, its in state["state"].items()
    }
    return {**state, "state": kept}
