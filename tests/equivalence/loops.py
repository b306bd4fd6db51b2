"""Whole scripts as rows: each runs plain, and as a session through every course that a group can take.

A script gets its session factory as an argument, so that the plain loop has the same text; see
:mod:`tests.equivalence.plain_loop`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
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
from tests.equivalence.rows import SAMPLES, SEED, Result, assert_agree, assert_close, on_ranks
from tests.unit.train.storm import End

Script = Callable[[Callable[..., Any]], Result]
Body = Callable[[Any, nn.Module, torch.optim.Optimizer, torch.Tensor, torch.Tensor], object]

DATA = TensorDataset(
    torch.randn(SAMPLES, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64),
    torch.randn(SAMPLES, 1, generator=torch.Generator().manual_seed(2), dtype=torch.float64),
)
GROWS_AND_SHRINKS = [End(6, (True,), (False,), 1), End(19, (True, False), (False, True), 0)]
"""One rank; a second joins in its first epoch; one of the two dies in the middle of the second."""


@cache
def _prototype(make: Callable[[], nn.Module]) -> nn.Module:
    """Made once, by the plain loop: the ranks' threads share torch's generator."""
    torch.manual_seed(7)
    return make().double()


def fresh(make: Callable[[], nn.Module]) -> Any:
    """A float64 model, initially the same on all ranks."""
    return copy.deepcopy(_prototype(make))


def an_epoch(ours: Any, loader: Any, model: Any, optimizer: Any) -> None:
    """All steps of an ordinary one."""
    for x, y in loader:
        a_step(ours, model, optimizer, x, y)


def a_step(ours: Any, model: Any, optimizer: Any, x: torch.Tensor, y: torch.Tensor) -> bool:
    """An ordinary one; returns whether it was applied. (``optimizer``: what has ``zero_grad``.)"""
    optimizer.zero_grad()
    loss = mse_loss(model(x), y)
    loss.backward()
    return bool(ours.step(loss))


def trained(
    made: Callable[..., Any],
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    *,
    at_first: Callable[[int], object] = lambda _epoch: None,
    body: Body = a_step,
    at_last: Callable[[int], object] = lambda _epoch: None,
    epochs: int = EPOCHS,
    **tracked: Any,
) -> Result:
    """What there is after an ordinary training, which calls these in each epoch, and ``body`` for each batch."""
    ours = made(model, optimizer)
    loader = ours.loader(DATA, global_batch_size=BATCH)
    for name, one in tracked.items():
        ours.track(name, one)
    for epoch in ours.epochs(epochs):
        at_first(epoch)
        for x, y in loader:
            body(ours, model, optimizer, x, y)
        at_last(epoch)
    return tensors(model=model, optimizer=optimizer, **tracked)


def batches(ours: Any, loader: Any, loop: str, begin: Callable[[], object] = lambda: None) -> Iterator[Any]:
    """Those of two epochs, or of as many iterations; ``begin`` is called where a turn begins."""
    if loop == "epochs":
        for _ in ours.epochs(2):
            begin()
            yield from loader
    else:
        for _ in ours.iterations(12):
            begin()
            yield loader.next()


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))


def linear() -> nn.Module:
    return nn.Linear(3, 1)


def session(*parts: Any, **options: Any) -> Any:
    return pilot.train.session(*parts, seed=SEED, **options)


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
    script: Script, *, operations: Iterable[int] = range(2, 13), joins: Iterable[int] = (), tolerance: float = 1e-12
) -> None:
    """All ranks of a run agree to the last bit; a session alone equals the plain loop, and so does one in a group."""
    expected, alone = script(Plain), script(session)
    assert_close(alone, expected, 0.0, "alone")
    for way, count, ends in [*ways(operations), *joined(joins)]:
        assert_agree(on_ranks(lambda: script(session), count, ends), expected, tolerance, way)


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
