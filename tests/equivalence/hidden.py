"""Scripts that compute with a value that neither the state nor all nodes have."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.nn.functional import l1_loss, mse_loss
from torch.utils.data import TensorDataset

from tests.equivalence.loops import Loop, fresh, mlp, session

X = torch.randn(16, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
Y = X.sum(1, keepdim=True)
FIXED, PER_NODE = {"global_batch_size": 4}, {"batch_size": 4}
SLOWLY = partial(torch.optim.SGD, lr=0.01)
Options = dict[str, Any]
Script = Callable[[Options], object]

_FACTORS = itertools.cycle([2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0])


def drawn() -> float:
    """A number without a seed, which surely differs from the last ones."""
    return next(_FACTORS)


class Hidden(Loop):
    """Four epochs of a loop with this loss of the output and the target; ``options``: of the loader."""

    def __init__(
        self, options: Options, loss: Callable[..., torch.Tensor] = mse_loss, model: Any = mlp, **others: Any
    ) -> None:
        data = others.pop("data", TensorDataset(X, Y))
        super().__init__(model=model, optimizer=SLOWLY, data=data, loader=options, lr_rule="linear", **others)
        self.loss_of = loss

    def loss(self, x: torch.Tensor, y: torch.Tensor | None = None) -> torch.Tensor:
        return self.loss_of(self.model(x), y)

    def run(self, **hooks: Any) -> Hidden:
        self.train(4, **hooks)
        return self


def switches_its_loss(options: Options) -> None:
    loop = Hidden(options)
    losses = {1: l1_loss}
    loop.run(first=lambda epoch: setattr(loop, "loss_of", losses.get(epoch, loop.loss_of)))


def registers_a_hook(options: Options) -> None:
    loop = Hidden(options)
    weight = loop.model.get_parameter("0.weight")
    loop.run(first=lambda epoch: epoch == 1 and weight.register_hook(lambda gradient: gradient / 2))


def draws_a_constant(options: Options) -> None:
    factor = drawn()
    Hidden(options, lambda y, target: mse_loss(y * factor, target)).run()


SCRIPTS: list[Script] = [switches_its_loss, registers_a_hook, draws_a_constant]


def steps_two_by_name(options: Options, other: str = "") -> None:
    """Each draws its own numbers; the loss of ``other`` is scaled by one that nobody has seeded."""
    models = {name: fresh(mlp) for name in "dg"}
    optimizers = {name: SLOWLY(model.parameters()) for name, model in models.items()}
    ours = session(models, optimizers, lr_rule="linear")
    factor = drawn()
    loader = ours.loader(TensorDataset(X, Y), **options)
    for _ in ours.epochs(4):
        for x, y in loader:
            for name, model in models.items():
                optimizers[name].zero_grad()
                error = mse_loss(model(x + torch.randn_like(x)) * (factor if name == other else 1.0), y)
                error.backward()
                ours.step(error, name)
