"""A script is told that it pairs the loader's batches with the items of a list or the like: a run that resumes in the
middle of an epoch, or does a batch again, pairs them with others.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import mse_loss

from pilot.core.errors import UserError
from tests.equivalence.loops import BATCH, DATA, fresh, mlp, session
from tests.equivalence.rows import SAMPLES, in_world
from tests.unit.train.storm import End

STEPS = -(-SAMPLES // BATCH)
Pair = tuple[Any, Any]


def trains(pairs: Callable[[Any, int], Iterable[Pair]]) -> None:
    """A script. ``pairs``: what it goes through in each epoch, from the loader and the epoch's number."""
    model = fresh(mlp)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    ours = session(model, optimizer)
    loader = ours.loader(DATA, global_batch_size=BATCH)
    for epoch in ours.epochs(2):
        for (x, y), weight in pairs(loader, epoch):
            optimizer.zero_grad()
            loss = mse_loss(model(x), y) * weight
            loss.backward()
            ours.step(loss)


WEIGHTS = [1.0 + step for step in range(STEPS)]


def with_a_list(loader: Any, _epoch: int) -> Iterable[Pair]:
    return zip(loader, WEIGHTS, strict=False)


def with_a_list_before(loader: Any, _epoch: int) -> Iterable[Pair]:
    return ((batch, weight) for weight, batch in zip([*WEIGHTS, 1.0], loader, strict=False))


def with_a_map(loader: Any, _epoch: int) -> Iterable[Pair]:
    return map(lambda batch, weight: (batch, weight), loader, WEIGHTS)


def with_a_number(loader: Any, _epoch: int) -> Iterable[Pair]:
    return ((batch, weight) for _, (batch, weight) in enumerate(zip(loader, range(100), strict=False)))


def with_a_tuple(loader: Any, _epoch: int) -> Iterable[Pair]:
    return zip(loader, tuple(WEIGHTS), strict=True)


def with_a_tensor(loader: Any, _epoch: int) -> Iterable[Pair]:
    return zip(loader, torch.tensor(WEIGHTS), strict=False)


def with_an_array(loader: Any, _epoch: int) -> Iterable[Pair]:
    return zip(loader, np.array(WEIGHTS), strict=False)


def with_what_never_ends(loader: Any, epoch: int) -> Iterable[Pair]:
    return zip(loader, itertools.count(1 + epoch * STEPS), strict=False)


def with_a_cycle(loader: Any, _epoch: int) -> Iterable[Pair]:
    return zip(loader, itertools.cycle([1.0, 0.5]), strict=False)


def with_a_generator(loader: Any, _epoch: int) -> Iterable[Pair]:
    def falling() -> Iterator[float]:
        weight = 1.0
        while True:
            yield weight
            weight *= 0.9

    return zip(loader, falling(), strict=False)


@pytest.mark.parametrize(
    "pairs",
    [
        with_a_list,
        with_a_list_before,
        with_a_map,
        with_a_number,
        with_a_tuple,
        with_a_tensor,
        with_an_array,
        with_what_never_ends,
        with_a_cycle,
        with_a_generator,
    ],
)
def test_a_list_beside_the_loader(pairs: Callable[..., Any], capsys: pytest.CaptureFixture[str]) -> None:
    trains(pairs)
    (line,) = capsys.readouterr().err.splitlines()
    assert "pairs the batches of session.loader with the items of a list or the like (zip)" in line
    assert "use `for i, batch in enumerate(loader)`" in line
    assert "test_notes_of_zips.py, line " in line


def by_number(loader: Any, _epoch: int) -> Iterable[Pair]:
    return ((batch, WEIGHTS[i]) for i, batch in enumerate(loader))


def with_a_constant(loader: Any, _epoch: int) -> Iterable[Pair]:
    return zip(loader, itertools.repeat(2.0), strict=False)


def changed(loader: Any, _epoch: int) -> Iterable[Pair]:
    return map(lambda batch: (batch, 1.0), loader)  # noqa: C417  # it is what is tested


def within_the_step(loader: Any, _epoch: int) -> Iterable[Pair]:
    for batch in loader:
        yield from zip([batch], [1.0], strict=True)


@pytest.mark.parametrize("pairs", [by_number, with_a_constant, changed, within_the_step])
def test_others_are_not_told_of(pairs: Callable[..., Any], capsys: pytest.CaptureFixture[str]) -> None:
    trains(pairs)
    assert capsys.readouterr().err == ""


def test_the_line_that_refuses_an_epoch_that_ends_early_names_the_zip() -> None:
    with pytest.raises(UserError, match="because the other part of its zip ended"):
        in_world(lambda: trains(with_a_list), 2, [End(5, (True,), (True,), 0, void=True)])
