"""Scripts that are refused in their loop, as rows of the table."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import nn
from torch.utils.data import TensorDataset

import pilot.train
from tests.equivalence.rows import Row, Script


class Made:
    """What a script creates before its loop."""

    def __init__(
        self, parameters: Iterable[nn.Parameter] = (), others: Iterable[nn.Module] = (), batch: int = 4, **options: Any
    ) -> None:
        self.model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 1), *others)
        self.model[1].requires_grad_(False)
        self.optimizer = torch.optim.SGD([*self.model.parameters(), *parameters], lr=0.1)
        self.session = pilot.train.session(self.model, self.optimizer, **options)
        self.loader = self.session.loader(TensorDataset(torch.ones(8, 2)), global_batch_size=batch)

    def batches(self, epochs: int = 1) -> Iterator[torch.Tensor]:
        for _ in self.session.epochs(epochs):
            for (x,) in self.loader:
                self.optimizer.zero_grad()
                yield x

    def loss(self, x: torch.Tensor) -> torch.Tensor:
        return self.model(x).square().mean()


class Refusals(list[Row]):
    """Rows. A decorator adds its script, with the row's name, what the refusal's line says, and what to do instead."""

    def script(self, name: str, line: str, instead: str) -> Callable[[Callable[[], None]], None]:
        """One that makes all that it needs."""

        def add(script: Callable[[], None]) -> None:
            self.append(Script(name=name, refused=line, instead=instead, elastic=script))

        return add

    def made(
        self, name: str, line: str, instead: str, make: Callable[[], Any] = Made
    ) -> Callable[[Callable[[Any], None]], None]:
        """One that gets what was made before its loop."""
        add_script = self.script(name, line, instead)
        return lambda script: add_script(lambda: script(make()))
