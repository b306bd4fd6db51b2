"""What a script changes in ``session.state`` and in what it tracks at the beginning of a turn of its loop, which some
processes do twice. The contract: the beginning computes with what the group has by then; at the turn's first batch the
process takes the group's state once more, so what a step reads in ``session.state`` is the same on all ranks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss

from tests.equivalence.loops import BATCH, DATA, Result, a_step, assert_equal, batches, fresh, linear, session, tensors
from tests.equivalence.rows import assert_agree, resumed
from tests.everyday import PARTS, parts
from tests.unit.train.storm import Keep


class Counter(nn.Module):
    """A tracked number."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("n", torch.zeros((), dtype=torch.float64))


def _lowers_a_temperature(by: str) -> Any:
    """Each loss is multiplied by ``state["t"]``, which each turn's beginning halves."""

    def script(make: Callable[..., Any]) -> Result:
        model = fresh(linear)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        ours = make({"M": model}, {"M": optimizer})
        loader = ours.loader(DATA, global_batch_size=BATCH)
        for x, y in batches(ours, loader, by, lambda: lower(ours)):
            optimizer.zero_grad()
            loss = mse_loss(model(x), y) * ours.state["t"]
            loss.backward()
            ours.step(loss)
        return tensors(model=model, state=dict(ours.state))

    return script


def lower(ours: Any) -> None:
    ours.state["t"] = ours.state.get("t", 1.0) * 0.5


@pytest.mark.parametrize("part", parts())
@pytest.mark.parametrize("by", ["epochs", "iterations"])
def test_what_the_beginning_changes_is_the_same_for_all(by: str, part: int) -> None:
    places = range(2 + part, 24, PARTS)
    assert_equal(_lowers_a_temperature(by), operations=places, joins=places)


@pytest.mark.parametrize("point", [0, 1])
@pytest.mark.parametrize("step", range(1, 11))
def test_a_run_that_resumes_in_the_middle_has_the_same(step: int, point: int) -> None:
    script = _lowers_a_temperature("epochs")
    expected, ranks = resumed(lambda: script(session), Keep(step, point))
    assert_agree(ranks, expected, 0.0)


@pytest.mark.parametrize("part", parts())
def test_a_tracked_count_of_iterations_counts_a_repeated_one_once(part: int) -> None:
    def script(make: Callable[..., Any]) -> Result:
        model, counter = fresh(linear), Counter()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        ours = make({"M": model}, {"M": optimizer})
        ours.track("counter", counter)
        loader = ours.loader(DATA, global_batch_size=BATCH)
        for x, y in batches(ours, loader, "iterations", lambda: counter.n.add_(1)):
            a_step(ours, model, optimizer, x, y)
        return tensors(model=model, counter=counter)

    places = range(2 + part, 24, PARTS)
    assert_equal(script, operations=places, joins=places)
