"""Optimizers of a list of parameters, and schedulers, by choice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.optim import lr_scheduler


def in_groups(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    groups = [{"params": parameters[:1], "lr": 0.02, "weight_decay": 0.1}, {"params": parameters[1:]}]
    return torch.optim.SGD(groups, lr=0.05, momentum=0.9, nesterov=True)


OPTIMIZERS: dict[str, Callable[[list[nn.Parameter]], Any]] = {
    "sgd": lambda ps: torch.optim.SGD(ps, lr=0.05, momentum=0.9),
    "adamw foreach": lambda ps: torch.optim.AdamW(ps, lr=0.02, foreach=True),
    "adam fused": lambda ps: torch.optim.Adam(ps, lr=0.02, fused=True, amsgrad=True),
    "adagrad": lambda ps: torch.optim.Adagrad(ps, lr=0.05, lr_decay=0.1),
    "rmsprop": lambda ps: torch.optim.RMSprop(ps, lr=0.01, momentum=0.5, centered=True),
    "groups": in_groups,
    "list": lambda ps: [torch.optim.SGD(ps[:2], lr=0.05, momentum=0.9), torch.optim.Adam(ps[2:], lr=0.02)],
    "by names": lambda ps: {"model": torch.optim.SGD(ps, lr=0.05, momentum=0.9)},
}
SCHEDULERS: dict[str, tuple[str, Callable[[Any], Any]] | None] = {
    "none": None,
    "by step": ("step", lambda o: lr_scheduler.StepLR(o, 3, 0.7)),
    "by epoch": ("epoch", lambda o: lr_scheduler.ExponentialLR(o, 0.6)),
    "one cycle": ("samples", lambda o: lr_scheduler.OneCycleLR(o, 0.08, total_steps=40)),
    "plateau": ("loss", lambda o: lr_scheduler.ReduceLROnPlateau(o, factor=0.5, patience=0)),
    "tracked": ("", lambda o: lr_scheduler.CosineAnnealingLR(o, 10)),
}
