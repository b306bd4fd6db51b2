"""A script's code at an epoch's end runs once: a process that resumes from a state saved there, or takes over from
others there, runs all of it from the state after the epoch's last step.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from tests.equivalence.loops import DATA, Loop, linear
from tests.equivalence.rows import on_ranks, resumed
from tests.unit.train.storm import End, Keep

LARGE = 1 << 18
"""Values of a tracked buffer, more than is copied in each step."""


def script() -> dict[str, Any]:
    """None of its code at the end could run twice."""
    bank = nn.Module()
    bank.register_buffer("values", torch.ones(LARGE, dtype=torch.float64))
    values = bank.get_buffer("values")
    loop = Loop(model=linear, tracked={"bank": bank}, named=True)
    model, session = loop.model, loop.session
    session.state["ends"] = []

    def last(epoch: int) -> None:
        with torch.no_grad():
            model.weight.mul_(0.5)
        values.mul_(1.5)
        loop.optimizer.param_groups[0]["lr"] *= 0.5
        means = session.evaluate(DATA, loop.measure, batch_size=2)
        loop.optimizer.state[model.weight]["momentum_buffer"].mul_(means["loss"])
        session.state["ends"].append(epoch)
        session.evaluate(DATA, lambda batch: {"again": model(batch[0]).mean()}, batch_size=11)

    loop.train(
        3,
        first=lambda _: values.add_(0.25),
        body=lambda *batch: loop.step(*batch, factor=values[0]),
        last=last,
    )
    momentum = loop.optimizer.state[model.weight]["momentum_buffer"]
    return {"ends": session.state["ends"], "of": [*model.parameters(), momentum, values[:2]]}


def assert_same(results: list[dict[str, Any]]) -> None:
    expected = script()
    for result in results:
        assert result["ends"] == [0, 1, 2]
        torch.testing.assert_close(result["of"], expected["of"], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("point", range(0, 8, 2))
def test_a_run_that_resumes_there(point: int, count: int) -> None:
    result, results = resumed(script, Keep(6, point), count)
    assert_same([result, *results])


@pytest.mark.parametrize("die", [(False,), (True, False)])
@pytest.mark.parametrize("operation", range(4))
def test_ranks_that_come_when_one_is_lost_there(operation: int, die: tuple[bool, ...]) -> None:
    ends = [End(operation, (True, False), die, 1, at="agreement"), End(operation, (False,), die, 1, at="agreement")]
    assert_same(on_ranks(script, 2, ends))
