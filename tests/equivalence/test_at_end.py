"""What a script does at an epoch's end is done once: who resumes from a state that was saved there, or takes over from
those who were there, runs all of it from the state after the epoch's last step.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss

import pilot.train
from tests.equivalence.loops import BATCH, DATA, fresh, linear
from tests.equivalence.rows import on_ranks, resumed
from tests.unit.train.storm import End, Keep

LARGE = 1 << 18
"""Values of a tracked buffer, more than is copied in each step."""


def script() -> dict[str, Any]:
    """None of what it does at the end could be done twice."""
    model, bank = fresh(linear), nn.Module()
    bank.register_buffer("values", torch.ones(LARGE, dtype=torch.float64))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    session = pilot.train.session({"M": model}, {"M": optimizer}, seed=1)
    session.track("bank", bank)
    loader = session.loader(DATA, global_batch_size=BATCH)
    session.state["ends"] = []
    values = bank.get_buffer("values")
    for epoch in session.epochs(3):
        values.add_(0.25)
        for x, y in loader:
            optimizer.zero_grad()
            loss = mse_loss(model(x), y) * values[0]
            loss.backward()
            session.step(loss)
        with torch.no_grad():
            model.weight.mul_(0.5)
        values.mul_(1.5)
        optimizer.param_groups[0]["lr"] *= 0.5
        means = session.evaluate(DATA, lambda batch: {"loss": mse_loss(model(batch[0]), batch[1])}, batch_size=2)
        optimizer.state[model.weight]["momentum_buffer"].mul_(means["loss"])
        session.state["ends"].append((epoch, float(loss.detach()) > 0))
        session.evaluate(DATA, lambda batch: {"again": model(batch[0]).mean()}, batch_size=11)
    momentum = optimizer.state[model.weight]["momentum_buffer"]
    return {"ends": session.state["ends"], "of": [*model.parameters(), momentum, values[:2]]}


def assert_same(results: list[dict[str, Any]], expected: dict[str, Any]) -> None:
    for result in results:
        assert result["ends"] == [(epoch, True) for epoch in range(3)]
        torch.testing.assert_close(result["of"], expected["of"], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("point", range(0, 8, 2))
def test_a_run_that_resumes_there(point: int, count: int) -> None:
    result, results = resumed(script, Keep(6, point), count)
    assert_same([result, *results], script())


@pytest.mark.parametrize("die", [(False,), (True, False)])
@pytest.mark.parametrize("operation", range(4))
def test_those_that_come_when_one_is_lost_there(operation: int, die: tuple[bool, ...]) -> None:
    expected = script()
    ends = [End(operation, (True, False), die, 1, at="agreement"), End(operation, (False,), die, 1, at="agreement")]
    assert_same(on_ranks(script, 2, ends), expected)
