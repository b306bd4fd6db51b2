"""Optimizers of a list of parameters, and schedulers, by choice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.optim import lr_scheduler


class Own(torch.optim.Optimizer):
    """With a counter and a generator in attributes; it also draws from torch's."""

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        super().__init__(parameters, {"lr": 0.05})
        self.count, self.noise = 0, torch.Generator().manual_seed(3)

    @torch.no_grad()
    def step(self, _closure: Any = None) -> None:
        self.count += 1
        drawn = torch.rand((), generator=self.noise, dtype=torch.float64).item()
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    self.state[p]["steps"] = self.state[p].get("steps", 0) + 1
                    p.sub_(p.grad, alpha=group["lr"] * (1 + drawn) / (self.count + self.state[p]["steps"]))
                    p.add_(torch.randn_like(p), alpha=0.01)


OPTIMIZERS: dict[str, Callable[[list[nn.Parameter]], Any]] = {
    "sgd": lambda ps: torch.optim.SGD(ps, lr=0.05, momentum=0.9),
    "adam fused": lambda ps: torch.optim.Adam(ps, lr=0.02, fused=True, amsgrad=True),
    "list": lambda ps: [torch.optim.SGD(ps[:-1], lr=0.05, momentum=0.9), torch.optim.Adam(ps[-1:], lr=0.02)],
    "own": Own,
    "rate in a tensor": lambda ps: torch.optim.Adam(ps, lr=torch.tensor(0.02, dtype=torch.float64)),
    "by names": lambda ps: {"model": torch.optim.SGD(ps, lr=0.05, momentum=0.9)},
    "by names, in turns": lambda ps: {"model": torch.optim.Adam(ps, lr=0.02)},
    "parts by name": lambda ps: {
        "model": torch.optim.SGD(ps[:-1], lr=0.05, momentum=0.9),
        "head": torch.optim.Adam(ps[-1:], lr=0.02),
    },
}
SCHEDULERS: dict[str, tuple[str, Callable[[Any], Any]] | None] = {
    "none": None,
    "by step": ("step", lambda o: lr_scheduler.StepLR(o, 3, 0.7)),
    "by epoch": ("epoch", lambda o: lr_scheduler.ExponentialLR(o, 0.6)),
    "one cycle": ("samples", lambda o: lr_scheduler.OneCycleLR(o, 0.08, total_steps=40)),
    "plateau": ("loss", lambda o: lr_scheduler.ReduceLROnPlateau(o, factor=0.5, patience=0)),
    "tracked": ("", lambda o: lr_scheduler.CosineAnnealingLR(o, 10)),
}
