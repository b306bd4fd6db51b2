"""Scripts that run twice: with a session in plain torch, and with an elastic one whose group changes in many ways.

A script gets its session factory as an argument, so that both have the same text; see
:mod:`tests.equivalence.plain_loop`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import nn
from torch.nn.functional import mse_loss
from torch.utils.data import TensorDataset

import pilot.train
from tests.equivalence.plain_loop import Plain as Plain
from tests.equivalence.rows import BATCH as BATCH
from tests.equivalence.rows import EPOCHS as EPOCHS
from tests.equivalence.rows import SAMPLES, SEED, Ran, Result, Row, assert_agree, assert_close, on_ranks
from tests.unit.train.storm import End

Make = Callable[..., Any]
"""A session factory: :func:`session` or :class:`Plain`."""
Script = Callable[[Make], Result]

DATA = TensorDataset(
    torch.randn(SAMPLES, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64),
    torch.randn(SAMPLES, 1, generator=torch.Generator().manual_seed(2), dtype=torch.float64),
)
X, Y = DATA.tensors
ONES = TensorDataset(torch.ones(8, 2))
"""For scripts whose numbers do not matter: two steps an epoch."""
GROWS_AND_SHRINKS = [End(6, (True,), (False,), 1), End(19, (True, False), (False, True), 0)]
"""One rank; a second joins in its first epoch; one of the two dies in the middle of the second."""


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))


def linear() -> nn.Module:
    return nn.Linear(3, 1)


def sgd(parameters: Any, lr: float = 0.05, momentum: float = 0.9) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=lr, momentum=momentum)


def session(*parts: Any, **options: Any) -> Any:
    return pilot.train.session(*parts, **{"seed": SEED, **options})


@cache
def _prototype(make: Callable[[], nn.Module]) -> nn.Module:
    """Made once, by the plain loop: the ranks' threads share torch's generator."""
    torch.manual_seed(7)
    return make().double()


def fresh(make: Callable[[], nn.Module]) -> Any:
    """A float64 model, initially the same on all ranks."""
    return copy.deepcopy(_prototype(make))


def nothing(*_: object) -> None:
    pass


class Loop:
    """The objects of an ordinary script, and its loop.

    Parameters
    ----------
    model : or a function of which each script gets a :func:`fresh` one
    optimizer : of its parameters
    data, loader, stream : what the training loader is made of, its options, and whether it is a stream
    tracked : objects by name
    named : the optimizer has a name, so that others could follow in each step
    options : of the session
    """

    def __init__(
        self,
        make: Make = session,
        model: Any = mlp,
        optimizer: Callable[[Any], torch.optim.Optimizer] = sgd,
        *,
        data: Any = DATA,
        loader: dict[str, Any] | None = None,
        stream: bool = False,
        tracked: dict[str, Any] | None = None,
        named: bool = False,
        **options: Any,
    ) -> None:
        self.model: Any = model if isinstance(model, nn.Module) else fresh(model)
        self.optimizer = optimizer(self.model.parameters())
        parts = ({"M": self.model}, {"M": self.optimizer}) if named else (self.model, self.optimizer)
        self.session = make(*parts, **options)
        given = loader or {}
        size = {} if "batch_size" in given else {"global_batch_size": BATCH}
        self.loader = (self.session.stream if stream else self.session.loader)(data, **size | given)
        self.tracked = tracked or {}
        for name, one in self.tracked.items():
            self.session.track(name, one)

    def loss(self, x: torch.Tensor, y: torch.Tensor | None = None) -> torch.Tensor:
        output: torch.Tensor = self.model(x)
        return output.square().mean() if y is None else mse_loss(output, y)

    def step(self, *batch: torch.Tensor, factor: Any = 1.0) -> bool:
        """An ordinary step, of which the loss is multiplied by ``factor``; returns whether it was applied."""
        self.optimizer.zero_grad()
        loss = self.loss(*batch) * factor
        loss.backward()
        return bool(self.session.step(loss))

    def batches(self, epochs: int = 1) -> Iterator[Any]:
        for _ in self.session.epochs(epochs):
            yield from self.loader

    def epoch(self) -> None:
        """All steps of an ordinary one."""
        for batch in self.loader:
            self.step(*batch)

    def train(
        self,
        epochs: int = EPOCHS,
        *,
        first: Callable[[int], object] = nothing,
        body: Callable[..., object] | None = None,
        last: Callable[[int], object] = nothing,
    ) -> Loop:
        """An ordinary training: ``first`` and ``last`` are called in each epoch, ``body`` for each batch."""
        for epoch in self.session.epochs(epochs):
            first(epoch)
            for batch in self.loader:
                (body or self.step)(*batch)
            last(epoch)
        return self

    def tensors(self, **others: Any) -> Result:
        """All that was trained, is tracked, or is given."""
        return tensors(model=self.model, optimizer=self.optimizer, **self.tracked, **others)

    def measure(self, batch: Any) -> dict[str, torch.Tensor]:
        """The function of an evaluation."""
        return {"loss": self.loss(*batch)}


def turns(loop: Loop, kind: str, begin: Callable[[], object] = nothing) -> Iterator[Any]:
    """The batches of two epochs, or of as many iterations; ``begin`` is called where a turn begins."""
    if kind == "epochs":
        for _ in loop.session.epochs(2):
            begin()
            yield from loop.loader
    else:
        for _ in loop.session.iterations(12):
            begin()
            yield loop.loader.next()


def broken(operations: Iterable[int]) -> Iterator[tuple[str, int, list[End]]]:
    """Two ranks, one of which misses the outcome of one of these joint operations: it dies there, is replaced, or
    survives.
    """
    for operation in operations:
        fates = [("dies", (False, True), 0), ("is replaced", (False, True), 1), ("lives on", (False,), 0)]
        fate, die, come = fates[operation % 3]
        yield f"one {fate} at {operation}", 2, [End(operation, (True, False), die, come)]


def joined(operations: Iterable[int]) -> Iterator[tuple[str, int, list[End]]]:
    """One rank, joined by another at one of these operations."""
    for operation in operations:
        yield f"one comes at {operation}", 1, [End(operation, (True,), (False,), 1)]


def ways(operations: Iterable[int]) -> Iterator[tuple[str, int, list[End]]]:
    """(name, initial ranks, how their generations end)."""
    yield "one rank", 1, []
    yield "two ranks", 2, []
    yield "1 -> 2 -> 1", 1, list(GROWS_AND_SHRINKS)
    yield from broken(operations)


def assert_equal(
    script: Script, *, operations: Iterable[int] = range(2, 13), joins: Iterable[int] = (), alone: float = 0.0
) -> None:
    """All ranks of a run agree to the last bit; a session alone equals the plain loop (within the tolerance ``alone``),
    and so does one in a group, up to rounding.
    """
    expected = script(Plain)
    assert_close(script(session), expected, alone, "alone")
    for way, count, ends in [*ways(operations), *joined(joins)]:
        assert_agree(on_ranks(lambda: script(session), count, ends), expected, way=way)


@dataclass(frozen=True, kw_only=True)
class SessionScript(Row):
    """A row that runs with any session.

    Parameters
    ----------
    run : the script
    operations, joins : at which a rank misses an outcome, and at which one joins, see :func:`assert_equal`
    parts : of these places each ``parts``-th is tried every day
    alone : the tolerance of a session alone: micro-batches are summed in another order than by the plain loop
    """

    run: Script
    operations: Sequence[int] = range(2, 13)
    joins: Sequence[int] = ()
    parts: int = 1
    alone: float = 0.0

    def script(self) -> Ran | None:
        """See :meth:`assert_equal`, which runs it."""
        raise NotImplementedError

    def assert_equal(self, part: int) -> None:
        """See :func:`assert_equal`; ``part``: of the places."""
        places = slice(part, None, self.parts)
        assert_equal(self.run, operations=self.operations[places], joins=self.joins[places], alone=self.alone)


def tensors(**parts: Any) -> Result:
    """The states of models and optimizers, and values, by name."""
    found: Result = {}
    for name, part in parts.items():
        _flatten(name, part.state_dict() if hasattr(part, "state_dict") else part, found)
    return found


def _flatten(name: str, value: Any, found: Result) -> None:
    if isinstance(value, dict | list | tuple):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            _flatten(f"{name}.{key}", item, found)
    elif isinstance(value, torch.Tensor):
        found[name] = value.detach().clone()
    elif isinstance(value, int | float):
        found[name] = value
