"""``torch.compile``: with the backend that only traces, and with the one that emits C++."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from tests.equivalence.recipe import Recipe
from tests.equivalence.rows import Row, Topic


def by(backend: str) -> Any:
    return lambda model: torch.compile(model, backend=backend, dynamic=False)


def in_place(model: nn.Module) -> None:
    model.compile(backend="aot_eager", dynamic=False)


def a_layer(model: nn.Module) -> None:
    model[0] = torch.compile(model[0], backend="aot_eager", dynamic=False)


ROWS: list[Row] = [
    Recipe(name="torch.compile(model)", fitted=by("aot_eager"), real=True),
    Recipe(name="torch.compile(model), by inductor", fitted=by("inductor"), real=True, needs="g++"),
    Recipe(name="model.compile()", fitted=in_place, real=True),
    Recipe(name="one layer compiled", fitted=a_layer, real=True),
]
TOPIC = Topic(45, "torch.compile", ROWS)
