"""All of ``torch.optim``, each as a plain loop would use it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tests.equivalence.recipe import Optimizers, Recipe
from tests.equivalence.rows import Row, Topic

OF = torch.optim


def made(kind: Callable[..., torch.optim.Optimizer], **options: Any) -> Optimizers:
    return lambda parameters: kind(parameters, **options)


ROWS: list[Row] = [
    Recipe(name="SGD with momentum", core=True),
    Recipe(
        name="SGD, Nesterov and weight decay",
        optimizer=made(OF.SGD, lr=0.05, momentum=0.9, nesterov=True, weight_decay=0.1),
    ),
    Recipe(name="Adam", optimizer=made(OF.Adam, lr=0.01), core=True),
    Recipe(name="Adam, amsgrad", optimizer=made(OF.Adam, lr=0.01, amsgrad=True)),
    Recipe(name="AdamW, foreach", optimizer=made(OF.AdamW, lr=0.01, foreach=True)),
    Recipe(name="AdamW, fused", optimizer=made(OF.AdamW, lr=0.01, fused=True), core=True),
    Recipe(name="SGD, fused", optimizer=made(OF.SGD, lr=0.05, momentum=0.9, fused=True)),
    Recipe(name="Adagrad, fused", optimizer=made(OF.Adagrad, lr=0.05, fused=True), tolerance=1e-7),
    Recipe(
        name="Adam, learning rate in a tensor",
        optimizer=made(OF.Adam, lr=torch.tensor(0.01, dtype=torch.float64), foreach=False),
    ),
    Recipe(name="Adadelta", optimizer=made(OF.Adadelta)),
    Recipe(name="Adafactor", optimizer=made(OF.Adafactor, lr=0.01), tolerance=1e-3),
    Recipe(name="Adagrad", optimizer=made(OF.Adagrad, lr=0.05), tolerance=1e-7),
    Recipe(name="Adamax", optimizer=made(OF.Adamax)),
    Recipe(name="ASGD", optimizer=made(OF.ASGD)),
    Recipe(name="NAdam", optimizer=made(OF.NAdam)),
    Recipe(name="RAdam", optimizer=made(OF.RAdam, lr=0.01)),
    Recipe(name="RMSprop, centered", optimizer=made(OF.RMSprop, centered=True, momentum=0.5)),
    Recipe(name="Rprop", optimizer=made(OF.Rprop), tolerance=float("inf")),
]
TOPIC = Topic(10, "Optimizers", ROWS)
