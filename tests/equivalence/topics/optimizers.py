"""All of ``torch.optim``, each used as in a plain loop."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from enum import Enum
from typing import Any

import numpy as np
import torch
from torch import nn

from tests.equivalence.recipe import Optimizers, Recipe
from tests.equivalence.rows import DEVICE, Row, Topic

OF = torch.optim


def made(kind: Callable[..., torch.optim.Optimizer], **options: Any) -> Optimizers:
    return lambda parameters: kind(parameters, **options)


def tensor_rate(**options: Any) -> Optimizers:
    return lambda parameters: OF.Adam(parameters, lr=torch.tensor(0.01, dtype=torch.float64), **options)


def two_groups(parameters: Any) -> torch.optim.Optimizer:
    first, *others = parameters
    return OF.AdamW([{"params": [first], "lr": 0.02, "weight_decay": 0.0}, {"params": others}], lr=0.01)


def matrices() -> nn.Module:
    """Muon takes no vectors."""
    return nn.Sequential(nn.Linear(3, 4, bias=False), nn.Tanh(), nn.Linear(4, 2, bias=False))


class Shape(Enum):
    """How gradients are shaped."""

    SIGNS = "signs"
    PLAIN = "plain"


def halves(count: int) -> float:
    return 0.5**count


class Counting(torch.optim.Optimizer):
    """With an enum, a function and a dtype among its options; and with numbers and generators in attributes."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 0.05, "shape": Shape.SIGNS, "rate_of": halves, "rounded": torch.float32})
        self.count, self.norms, self.average = 0, [1.0], {"sum": torch.zeros((), dtype=torch.float64, device=DEVICE)}
        self.chance, self.noise = random.Random(3), torch.Generator().manual_seed(3)
        self.chances, self.old_chances = np.random.default_rng(3), np.random.RandomState(3)
        self.listed = [p for group in self.param_groups for p in group["params"]]

    @torch.no_grad()
    def step(self, _closure: Any = None) -> None:
        self.count += 1
        group = self.param_groups[0]
        drawn = self.chance.random() + self.chances.random() + self.old_chances.rand()
        drawn += float(torch.rand((), generator=self.noise))
        for p in self.listed:
            if p.grad is not None:
                self.average["sum"] += p.grad.sum()
                self.norms.append(float(p.norm()))
                of_all = sum(self.norms[-4:]) + float(self.average["sum"].square())
                gradient = p.grad.sign() if group["shape"] is Shape.SIGNS else p.grad
                rate = group["lr"] * (1 + drawn) / (self.count + of_all) + 0.01 * group["rate_of"](self.count)
                p.sub_(gradient.to(group["rounded"]), alpha=rate)


class Remembering(torch.optim.Optimizer):
    """Keeps the last gradient itself (as MARS), averages of all parameters under one name (as MADGRAD), eigenvectors,
    which LAPACK returns in column-major order (as SOAP), and averages of each fourth number of a gradient, as views
    with gaps (as Prodigy); and sets its rate.
    """

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 0.05})
        self.state: Any
        self.state["all"] = {"steps": torch.zeros(1)}

    @torch.no_grad()
    def step(self, _closure: Any = None) -> None:
        self.state["all"]["steps"] += 1
        for group in self.param_groups:
            for p in group["params"]:
                state, some = self.state[p], p.grad.flatten()[::4]
                average = state.setdefault("average", torch.zeros_like(some))
                average.lerp_(some, 0.1)
                last = state.get("last", p.grad)
                p.sub_(0.75 * p.grad + 0.25 * last, alpha=group["lr"] / (1 + float(average.abs().sum())))
                state["last"] = p.grad
                self._turn(p, state)
            group["lr"] = group["lr"] * 0.99 + 1e-4 * float(self.state["all"]["steps"])

    def _turn(self, p: torch.Tensor, state: dict[str, Any]) -> None:
        """Step along the axes of the gradients so far."""
        gradient = p.grad.reshape(len(p), -1)
        if "axes" in state:
            (axes,) = state["axes"]
            p.sub_((axes @ (axes.T @ gradient)).reshape(p.shape), alpha=0.05)
        sums = state.setdefault("sums", [torch.eye(len(p)).to(p)])
        sums[0] += gradient @ gradient.T
        state.setdefault("axes", (torch.linalg.qr(sums[0])[0],))


class Masters(torch.optim.Optimizer):
    """float32 master weights for bfloat16 parameters."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 0.05})

    @torch.no_grad()
    def step(self, _closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                master = self.state[p].setdefault("master", p.detach().float())
                master.sub_(p.grad.float(), alpha=group["lr"])
                p.copy_(master)


def with_hooks(parameters: Any) -> torch.optim.Optimizer:
    """Centres the gradients before each step, and clamps the parameters after it."""
    optimizer = OF.SGD(parameters, lr=0.05)
    its = [p for group in optimizer.param_groups for p in group["params"]]

    @torch.no_grad()
    def centre(*_: Any) -> None:
        for p in its:
            if p.grad is not None and p.dim() > 1:
                p.grad.sub_(p.grad.mean(1, keepdim=True))

    @torch.no_grad()
    def clamp(*_: Any) -> None:
        for p in its:
            p.clamp_(-0.3, 0.3)

    optimizer.register_step_pre_hook(centre)
    optimizer.register_step_post_hook(clamp)
    return optimizer


def half_precision(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    dtype = next(model.parameters()).dtype
    return (model(x.to(dtype)) - 0.5).square().mean()


ROWS: list[Row] = [
    Recipe(name="SGD with momentum", core=True),
    Recipe(
        name="SGD, Nesterov, weight decay",
        optimizer=made(OF.SGD, lr=0.05, momentum=0.9, nesterov=True, weight_decay=0.1),
    ),
    Recipe(name="SGD, fused", optimizer=made(OF.SGD, lr=0.05, momentum=0.9, fused=True)),
    Recipe(name="Adam", optimizer=made(OF.Adam, lr=0.01)),
    Recipe(name="Adam, amsgrad", optimizer=made(OF.Adam, lr=0.01, amsgrad=True)),
    Recipe(name="Adam, learning rate in a tensor", optimizer=tensor_rate(foreach=False)),
    Recipe(name="Adam, fused, learning rate in a tensor", optimizer=tensor_rate(fused=True)),
    Recipe(name="AdamW, foreach", optimizer=made(OF.AdamW, lr=0.01, foreach=True)),
    Recipe(name="AdamW, fused", optimizer=made(OF.AdamW, lr=0.01, fused=True), core=True),
    Recipe(name="AdamW, two parameter groups", optimizer=two_groups),
    Recipe(name="Adadelta", optimizer=made(OF.Adadelta)),
    Recipe(name="Adafactor", optimizer=made(OF.Adafactor, lr=0.01), tolerance=1e-3),
    Recipe(name="Adagrad", optimizer=made(OF.Adagrad, lr=0.05), tolerance=1e-7),
    *[
        Recipe(name="Adagrad, fused", optimizer=made(OF.Adagrad, lr=0.05, fused=True), tolerance=1e-7)
        for _ in range(DEVICE.type == "cpu")  # torch has no kernel for CUDA
    ],
    Recipe(name="Adamax", optimizer=made(OF.Adamax)),
    Recipe(name="ASGD", optimizer=made(OF.ASGD)),
    Recipe(name="Muon", model=matrices, optimizer=made(OF.Muon, lr=0.01), tolerance=math.inf),
    Recipe(name="NAdam", optimizer=made(OF.NAdam)),
    Recipe(name="RAdam", optimizer=made(OF.RAdam, lr=0.01)),
    Recipe(name="RMSprop, centered, momentum", optimizer=made(OF.RMSprop, centered=True, momentum=0.5)),
    Recipe(name="Rprop", optimizer=made(OF.Rprop), tolerance=math.inf),
    Recipe(name="an optimizer with hooks before and after its step", optimizer=with_hooks),
    Recipe(
        name="an optimizer of one's own: an enum, a function, a dtype as options; numbers, generators in attributes",
        optimizer=Counting,
        core=True,
    ),
    Recipe(
        name="an optimizer of one's own: p.grad, a state for all, matrices in columns, averages of some numbers",
        optimizer=Remembering,
    ),
    Recipe(
        name="float32 masters over bfloat16",
        optimizer=Masters,
        dtype=torch.bfloat16,
        loss=half_precision,
        tolerance=0.05,
        core=True,
    ),
]
TOPIC = Topic(10, "Optimizers", ROWS)
