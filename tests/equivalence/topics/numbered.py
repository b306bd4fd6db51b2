"""What depends on a batch's number in its epoch, as ``loader.enumerate`` gives it: a learning rate, a loss's weight."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

import pilot.train
from tests.equivalence.history import Step
from tests.equivalence.recipe import Recipe, Sums, inputs, tensors_of
from tests.equivalence.rows import EPOCHS, SEED, Ran, Row, Topic

Counted = Iterable[tuple[int, Any]]


def numbers(loader: Any) -> Counted:
    counted: Counted = loader.enumerate()
    return counted


def rate(number: int, epoch: int) -> float:
    """A warm-up and a decay by the fraction of epochs that are over."""
    return 0.02 * (1 + number) / (1 + epoch)


@dataclass(frozen=True, kw_only=True)
class Numbered(Recipe):
    """``counted``: how a script numbers the batches of the loader, from ``first``; ``groups``: where it has the
    optimizer's groups, from before the session.
    """

    counted: Callable[[Any], Counted]
    first: int = 0
    groups: Callable[[torch.optim.Optimizer], list[dict[str, Any]]] = lambda optimizer: optimizer.param_groups

    def script(self) -> Ran:
        """See :class:`~tests.equivalence.rows.Row`."""
        model, optimizer, _, _ = self._made()
        groups = self.groups(optimizer)
        session = pilot.train.session(model, optimizer, seed=SEED)
        loader = session.loader(self.dataset(self._data()), global_batch_size=self.batch, **self.loader)
        for epoch in session.epochs(EPOCHS):
            for number, batch in self.counted(loader):
                for group in groups:
                    group["lr"] = rate(number, epoch)
                optimizer.zero_grad()
                self._weighted(number).loss(model, inputs(batch)).backward()
                session.step()
        return Ran(session, tensors_of(model, optimizer))

    def _sums(self, step: Step, model: nn.Module, optimizer: Any, *others: Any) -> list[Sums]:
        number = self.first + step.cursor // self.batch
        optimizer.param_groups[0]["lr"] = rate(number, step.epoch)
        return Recipe._sums(self._weighted(number), step, model, optimizer, *others)

    def _weighted(self, number: int) -> Recipe:
        def loss(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
            return self.loss(model, x) * (1 + number / 10)

        return replace(self, loss=loss)

    def __hash__(self) -> int:
        return hash(self.name)


ROWS: list[Row] = [
    Numbered(name="a learning rate and a loss's weight by loader.enumerate()", counted=numbers, core=True),
    Numbered(name="the same, counted from 1", counted=lambda loader: loader.enumerate(1), first=1),
    Numbered(
        name="the same, an optimizer's groups in a variable",
        counted=numbers,
        groups=lambda optimizer: list(optimizer.param_groups),
        core=True,
    ),
]
TOPIC = Topic(68, "Numbers of batches", ROWS)
