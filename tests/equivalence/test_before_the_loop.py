"""A script that asks for its rank before its loop enters its group there, and takes over its state; what it does from
there to the loop, others have done at the training's beginning.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss
from torch.utils.data import TensorDataset

import pilot.train
from tests.equivalence.rows import in_world
from tests.unit.train.storm import End, Keep

DATA = TensorDataset(torch.arange(36.0, dtype=torch.float64).view(12, 3) / 36, torch.ones(12, 1, dtype=torch.float64))

Begin = Callable[[Any, Any, nn.Module], None]
"""What the script does once it has its rank: with the session, the loader and the model."""


def counts_from_nothing(session: Any, _loader: Any, _model: nn.Module) -> None:
    session.state["decays"] = 0


def asks_for_its_batch(session: Any, loader: Any, _model: nn.Module) -> None:
    session.state["decays"] = 0 * loader.batch_size


def loads_buffers(session: Any, _loader: Any, model: nn.Module) -> None:
    session.state["decays"] = 0
    model.load_state_dict({"factor": torch.ones(())}, strict=False)


def script(begin: Begin) -> dict[str, Any]:
    torch.manual_seed(0)
    model = nn.Linear(3, 1, dtype=torch.float64)
    model.register_buffer("factor", torch.ones(()))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    session = pilot.train.session(model, optimizer, seed=1)
    loader = session.loader(DATA, global_batch_size=4)
    assert session.rank < session.size
    begin(session, loader, model)
    seen: list[int] = []
    session.on_restore(lambda: seen.append(session.steps))
    for epoch in session.epochs(4):
        assert seen or epoch == 0
        scale = 0.5 ** session.state["decays"] * float(model.factor)
        for x, y in loader:
            optimizer.zero_grad()
            loss = mse_loss(model(x), y) * scale
            loss.backward()
            session.step(loss)
        session.state["decays"] += 1
        model.factor *= 0.75
        seen.append(session.steps)
    return {**model.state_dict(), "decays": torch.tensor(float(session.state["decays"]))}


BEGINS = [counts_from_nothing, asks_for_its_batch, loads_buffers]


@pytest.mark.parametrize("begin", BEGINS)
@pytest.mark.parametrize("operation", [2, 5, 7, 9, 12])
def test_a_node_that_joins_has_at_its_loops_beginning_what_the_others_had(begin: Begin, operation: int) -> None:
    _, (expected,) = in_world(lambda: script(begin), 1, [])
    for rank in in_world(lambda: script(begin), 1, [End(operation, (True,), (False,), 1)])[1]:
        torch.testing.assert_close(rank, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("begin", BEGINS)
@pytest.mark.parametrize("step", [3, 4, 5, 6, 10])
def test_a_run_that_resumes_has_it_too(begin: Begin, step: int) -> None:
    world, (expected,) = in_world(lambda: script(begin), 1, [], keep=Keep(step, 0))
    assert world.kept_state is not None
    _, (resumed,) = in_world(lambda: script(begin), 1, [], begin=world.kept_state)
    torch.testing.assert_close(resumed, expected, rtol=0, atol=0)
