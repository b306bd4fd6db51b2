"""A row of the table: a script, run plain, alone, on two ranks, and on one, two, and one again in mid-epoch.

The ranks are threads of this process with real sessions; see :mod:`tests.unit.train.storm`.
"""

from __future__ import annotations

import copy
import importlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import pilot.train
from pilot.train.order import permutation
from tests.unit.train.storm import End, World, group_of

SAMPLES, BATCH, EPOCHS, SEED = 22, 4, 2, 3
GROW_AND_SHRINK = [End(4, (True,), (False,), 1), End(9, (True, False), (False, True), 0)]
"""One rank; a second comes in its first epoch; one of the two dies in the middle of the second."""

Optimizers = Callable[[Any], torch.optim.Optimizer]


@dataclass(frozen=True)
class Row:
    """What is trained, and how."""

    model: Callable[[], nn.Module]
    optimizer: Optimizers = field(default=lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9))
    features: tuple[int, ...] = (3,)
    micro: int | None = None
    loss: Callable[[nn.Module, torch.Tensor], torch.Tensor] = field(
        default=lambda model, x: (model(x) - 0.5).square().mean()
    )
    before_step: Callable[[pilot.train.Session, nn.Module], None] = field(default=lambda _session, _model: None)
    plain_before_step: Callable[[nn.Module], None] = field(default=lambda _model: None)
    tolerance: float = 1e-12


def data(row: Row) -> TensorDataset:
    generator = torch.Generator().manual_seed(1)
    return TensorDataset(torch.randn(SAMPLES, *row.features, generator=generator, dtype=torch.float64))


def prototype(row: Row) -> nn.Module:
    """Made once: threads share torch's generator."""
    torch.manual_seed(7)
    return row.model().double()


def elastic(row: Row, model: nn.Module) -> dict[str, torch.Tensor]:
    """The script, on one rank."""
    model = copy.deepcopy(model)
    optimizer = row.optimizer(model.parameters())
    session = pilot.train.session(model, optimizer, seed=SEED)
    loader = session.loader(data(row), global_batch_size=BATCH, micro_batch_size=row.micro)
    for _ in session.epochs(EPOCHS):
        for (x,) in loader:
            optimizer.zero_grad()
            row.loss(model, x).backward()
            row.before_step(session, model)
            session.step()
    return dict(model.state_dict())


def plain(row: Row, model: nn.Module) -> dict[str, torch.Tensor]:
    """The loop that it was made from."""
    model = copy.deepcopy(model)
    optimizer = row.optimizer(model.parameters())
    (x,) = data(row).tensors
    for epoch in range(EPOCHS):
        order = torch.from_numpy(permutation(SEED, epoch, SAMPLES))
        for start in range(0, SAMPLES, BATCH):
            batch = x[order[start : start + BATCH]]
            optimizer.zero_grad()
            for part in batch.split(row.micro or BATCH):
                (row.loss(model, part) * (len(part) / len(batch))).backward()
            row.plain_before_step(model)
            optimizer.step()
    return dict(model.state_dict())


def on_ranks(script: Callable[[], Any], count: int, ends: list[End]) -> list[Any]:
    """What ``script`` gives on each rank."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(importlib.import_module("pilot.train.session"), "group_of", group_of)
        return World(script, count, ends).run()


def results(row: Row) -> dict[str, list[dict[str, torch.Tensor]]]:
    """What each way to run the row gives, by rank; the first is the plain loop."""
    model = prototype(row)
    return {
        "plain": [plain(row, model)],
        "alone": [elastic(row, model)],
        "two ranks": on_ranks(lambda: elastic(row, model), 2, []),
        "1 -> 2 -> 1": on_ranks(lambda: elastic(row, model), 1, list(GROW_AND_SHRINK)),
    }


def assert_equal(row: Row) -> None:
    """All ranks of one run are equal to the last bit, and every run gives what the plain loop gives."""
    ran = results(row)
    (expected,) = ran["plain"]
    for way, ranks in ran.items():
        for rank in ranks:
            for name, tensor in rank.items():
                assert torch.equal(tensor, ranks[0][name]), (way, name)
                torch.testing.assert_close(
                    tensor, expected[name], rtol=row.tolerance, atol=row.tolerance, msg=lambda m, w=way: f"{w}: {m}"
                )
