"""Changes of ``session.state`` and of tracked objects at the beginning of a turn of the loop, which some processes run
twice. The contract: the beginning computes with the group's state; at the turn's first batch the process takes the
group's state once more, so what a step reads in ``session.state`` is the same on all ranks.
"""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import nn

from tests.equivalence.loops import Loop, Make, Result, assert_equal, linear, session, turns
from tests.equivalence.rows import assert_agree, resumed
from tests.everyday import PARTS, parts
from tests.unit.train.storm import Keep


def lowers_a_temperature(make: Make, kind: str) -> Result:
    """Each loss is multiplied by ``state["t"]``, which each turn's beginning halves."""
    loop = Loop(make, linear, named=True)
    state = loop.session.state
    for batch in turns(loop, kind, lambda: state.update(t=state.get("t", 1.0) * 0.5)):
        loop.step(*batch, factor=state["t"])
    return loop.tensors(state=state)


def counts_iterations(make: Make) -> Result:
    counter = nn.Module()
    counter.register_buffer("n", torch.zeros((), dtype=torch.float64))
    loop = Loop(make, linear, tracked={"counter": counter}, named=True)
    for batch in turns(loop, "iterations", lambda: counter.n.add_(1)):
        loop.step(*batch)
    return loop.tensors()


SCRIPTS = {
    "epochs": partial(lowers_a_temperature, kind="epochs"),
    "iterations": partial(lowers_a_temperature, kind="iterations"),
    "a tracked count of iterations": counts_iterations,
}


@pytest.mark.parametrize("part", parts())
@pytest.mark.parametrize("name", SCRIPTS)
def test_a_change_at_the_beginning_counts_once_on_all_ranks(name: str, part: int) -> None:
    places = range(2 + part, 24, PARTS)
    assert_equal(SCRIPTS[name], operations=places, joins=places)


@pytest.mark.parametrize("point", [0, 1])
@pytest.mark.parametrize("step", range(1, 11))
def test_a_run_that_resumes_in_the_middle_has_the_same(step: int, point: int) -> None:
    expected, ranks = resumed(lambda: lowers_a_temperature(session, "epochs"), Keep(step, point))
    assert_agree(ranks, expected, 0.0)
