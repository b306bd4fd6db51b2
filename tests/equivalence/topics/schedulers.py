"""All of ``torch.optim.lr_scheduler``, by step and by epoch."""

from __future__ import annotations

import torch

from tests.equivalence.recipe import Recipe, Schedulers
from tests.equivalence.rows import Row, Topic
from tests.equivalence.topics.optimizers import tensor_rate

LR = torch.optim.lr_scheduler
ALL: dict[str, Schedulers] = {
    "StepLR": lambda o: LR.StepLR(o, 3, 0.5),
    "MultiStepLR": lambda o: LR.MultiStepLR(o, [2, 5], 0.5),
    "ConstantLR": lambda o: LR.ConstantLR(o, 0.5, 4),
    "LinearLR": lambda o: LR.LinearLR(o, 0.1, 1.0, 8),
    "ExponentialLR": lambda o: LR.ExponentialLR(o, 0.9),
    "PolynomialLR": lambda o: LR.PolynomialLR(o, 10, 2.0),
    "CosineAnnealingLR": lambda o: LR.CosineAnnealingLR(o, 6),
    "CosineAnnealingWarmRestarts": lambda o: LR.CosineAnnealingWarmRestarts(o, 3, 2),
    "CyclicLR": lambda o: LR.CyclicLR(o, 0.01, 0.1, 3),
    "OneCycleLR": lambda o: LR.OneCycleLR(o, 0.1, total_steps=13),
    "LambdaLR": lambda o: LR.LambdaLR(o, lambda n: 1 / (1 + n)),
    "MultiplicativeLR": lambda o: LR.MultiplicativeLR(o, lambda _: 0.95),
    "SequentialLR": lambda o: LR.SequentialLR(o, [LR.LinearLR(o, 0.1, 1.0, 4), LR.ExponentialLR(o, 0.9)], [4]),
    "ChainedScheduler": lambda o: LR.ChainedScheduler([LR.ConstantLR(o, 0.5, 3), LR.ExponentialLR(o, 0.9)]),
}
BY_STEP: list[Row] = [
    Recipe(name=f"{name} by step", scheduler=kind, schedule="step", core=name == "OneCycleLR")
    for name, kind in ALL.items()
]
BY_EPOCH: list[Row] = [
    Recipe(name=f"{name} by epoch", scheduler=ALL[name], schedule="epoch")
    for name in ("StepLR", "CosineAnnealingLR", "SequentialLR")
]
OTHERS: list[Row] = [
    Recipe(name="ReduceLROnPlateau", scheduler=lambda o: LR.ReduceLROnPlateau(o, patience=0), schedule="loss"),
    Recipe(name="StepLR, schedule='samples'", scheduler=ALL["StepLR"], schedule="samples"),
    Recipe(
        name="LinearLR by step, learning rate in a tensor",
        optimizer=tensor_rate(foreach=False),
        scheduler=ALL["LinearLR"],
        schedule="step",
    ),
]
TOO_SHORT: list[Row] = [
    Recipe(
        name="OneCycleLR with too few steps",
        scheduler=lambda o: LR.OneCycleLR(o, 0.1, total_steps=5),
        schedule="step",
        refused="OneCycleLR cannot continue",
        instead="as many steps as the run has, or schedule='epoch'",
    ),
    Recipe(
        name="StepLR by step, with batch_size=",
        scheduler=ALL["StepLR"],
        schedule="step",
        batch=2,
        per_node=True,
        options={"lr_rule": "none"},
        different="on more nodes an epoch has fewer steps",
    ),
]
TOPIC = Topic(15, "Schedulers", [*BY_STEP, *BY_EPOCH, *OTHERS, *TOO_SHORT])
