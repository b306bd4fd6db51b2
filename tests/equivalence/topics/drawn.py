"""Random numbers that a script draws in its loop: each rank its own for a loss, all ranks the same for a step."""

from __future__ import annotations

import copy
import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import TensorDataset

import pilot.train
from pilot.train.data import rng
from pilot.train.data.order import permutation
from pilot.train.data.sampler import mix
from tests.equivalence.history import Part, Step
from tests.equivalence.recipe import Recipe, Sums, add, give_gradients, mlp, seed, sgd, square
from tests.equivalence.rows import BATCH, EPOCHS, SAMPLES, SEED, Ran, Row, Script, Tensors, Topic


class Langevin(torch.optim.SGD):
    """Stochastic gradient Langevin dynamics: the optimizer adds its own noise."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        super().step(closure)
        for group in self.param_groups:
            for p in group["params"]:
                p.add_(torch.randn_like(p), alpha=0.01)


def noisy(model: nn.Module) -> None:
    for p in model.parameters():
        if p.grad is not None:
            p.grad.add_(torch.randn_like(p), alpha=0.01)


def decides_by_chance(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """As in stochastic depth."""
    return square(model, x) if random.random() < 0.5 else square(model, -x)


class Negatives(TensorDataset):
    """Samples that the script draws anew for each epoch, as recommenders do."""

    def sample(self, _epoch: int) -> None:
        drawn = random.random() + np.random.random() + torch.rand(self.tensors[0].shape, dtype=torch.float64)
        self.tensors = (drawn,)


# --- of one optimizer after the other ---

DATA = torch.randn(SAMPLES, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def two() -> tuple[dict[str, nn.Module], dict[str, torch.optim.Optimizer]]:
    torch.manual_seed(7)
    model = mlp().double()
    models = {"critic": model, "generator": copy.deepcopy(model)}
    return models, {name: sgd(one.parameters()) for name, one in models.items()}


def on_noise(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Like a generator's loss, on freshly drawn noise."""
    return square(model, x + torch.randn_like(x))


def draws_twice() -> Ran:
    models, optimizers = two()
    session = pilot.train.session(models, optimizers, seed=SEED)
    loader = session.loader(TensorDataset(DATA), global_batch_size=BATCH)
    for _ in session.epochs(EPOCHS):
        for (x,) in loader:
            for name, model in models.items():
                optimizers[name].zero_grad()
                loss = on_noise(model, x)
                loss.backward()
                session.step(loss, name)
    return Ran(session, tensors(models))


def draws_twice_plainly(steps: Sequence[Step], _member: int) -> Tensors:
    models, optimizers = two()
    for step in steps:
        parts = step.parts(BATCH, None)
        for turn, (name, model) in enumerate(models.items()):
            give_gradients([gradients(model, step, part, turn) for part in parts])
            optimizers[name].step()
    return tensors(models)


def gradients(model: nn.Module, step: Step, part: Part, turn: int) -> Sums:
    """A rank's loss, weighted."""
    sums: Sums = {}
    x = DATA[permutation(SEED, step.epoch, SAMPLES)[part.start : part.stop]]
    if turn:
        rng.seed_all(mix(SEED, step.number, part.draws_as, turn))
    else:
        seed(step, part)
    model.zero_grad()
    on_noise(model, x).backward()
    add(sums, model.parameters(), part.weight)
    return sums


def tensors(models: dict[str, nn.Module]) -> Tensors:
    return {f"{name}/{key}": t.clone() for name, model in models.items() for key, t in model.state_dict().items()}


ROWS: list[Row] = [
    Recipe(name="an optimizer that draws noise (SGLD)", optimizer=lambda p: Langevin(p, lr=0.05), real=True),
    Recipe(name="noise on the sums", on_sums=noisy, real=True),
    Recipe(name="a loss chosen by chance", loss=decides_by_chance, real=True, different="each rank draws its own"),
    Recipe(name="samples drawn at an epoch's beginning", dataset=Negatives, each_epoch=Negatives.sample, real=True),
    Script(
        name="noise for one of two optimizers, drawn after the other one's step",
        elastic=draws_twice,
        reference=draws_twice_plainly,
        real=True,
        different="each rank draws its own",
    ),
]
TOPIC = Topic(67, "Random numbers in the loop", ROWS)
