"""Scripts that are refused, as rows of the table."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

from tests.equivalence.loops import ONES, Loop, nothing
from tests.equivalence.rows import Row, Script

Deed = Callable[[Any, torch.Tensor], object]
"""With the script's objects and its batch."""


class Made(Loop):
    """Three layers, of which the second is frozen."""

    def __init__(self, others: Iterable[nn.Module] = (), data: Any = ONES, **options: Any) -> None:
        model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 1), *others)
        model[1].requires_grad_(False)
        super().__init__(model=model, data=data, **options)


class Refusals(list[Row]):
    """Rows. A decorator adds its script, with the row's name, the refusal's line, and the advice what to do instead;
    ``make`` creates the script's objects.
    """

    def script(self, name: str, line: str, instead: str) -> Callable[[Callable[[], object]], None]:
        """A script that creates everything itself."""
        return lambda script: self.append(Script(name=name, refused=line, instead=instead, elastic=script))

    def made(
        self, name: str, line: str, instead: str, make: Callable[[], Any] = Made
    ) -> Callable[[Callable[[Any], object]], None]:
        """A script that gets its objects."""
        add = self.script(name, line, instead)
        return lambda script: add(lambda: script(make()))

    def batch(self, name: str, line: str, instead: str, make: Callable[[], Any] = Made) -> Callable[[Deed], None]:
        """The body of a loop, after ``zero_grad``."""

        def script(body: Deed, loop: Any) -> None:
            for x, *_ in loop.batches():
                loop.optimizer.zero_grad()
                body(loop, x)

        add = self.made(name, line, instead, make)
        return lambda body: add(lambda loop: script(body, loop))

    def step(
        self, name: str, line: str, instead: str, *, after: Deed = nothing, make: Callable[[], Any] = Made
    ) -> Callable[[Deed], None]:
        """What is between backward and ``session.step``; ``after``: what follows that."""

        def body(between: Deed, loop: Any, x: torch.Tensor) -> None:
            loop.loss(x).backward()
            between(loop, x)
            loop.session.step()
            after(loop, x)

        add = self.batch(name, line, instead, make)
        return lambda between: add(lambda loop, x: body(between, loop, x))

    def first(self, name: str, line: str, instead: str, make: Callable[[], Any] = Made) -> Callable[[Any], None]:
        """What is done at the beginning of each of three epochs, given its number."""
        add = self.made(name, line, instead, make)
        return lambda deed: add(lambda loop: loop.train(3, first=lambda epoch: deed(loop, epoch)))
