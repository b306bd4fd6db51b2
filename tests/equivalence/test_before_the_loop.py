"""A script that reads its rank before its loop enters its group there, and takes over its state; the code from there to
the loop has run on the others at the training's beginning.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from tests.equivalence.loops import Loop
from tests.equivalence.rows import assert_agree, on_ranks, resumed
from tests.unit.train.storm import End, Keep

Begin = Callable[[Loop], object]
"""The script's code once it has its rank."""


def with_factor() -> nn.Module:
    model = nn.Linear(3, 1)
    model.register_buffer("factor", torch.ones(()))
    return model


def loads_buffers(loop: Loop) -> None:
    loop.session.state["decays"] = 0
    loop.model.load_state_dict({"factor": torch.ones(())}, strict=False)


BEGINS: list[Begin] = [
    lambda loop: loop.session.state.update(decays=0),
    lambda loop: loop.session.state.update(decays=0 * loop.loader.batch_size),
    loads_buffers,
]


def script(begin: Begin) -> dict[str, Any]:
    loop = Loop(model=with_factor, loader={"global_batch_size": 8})
    session, restored, scale = loop.session, list[int](), [1.0]
    assert session.rank < session.size
    begin(loop)
    session.on_restore(lambda: restored.append(session.steps))

    def first(epoch: int) -> None:
        assert restored or epoch == 0
        scale[0] = 0.5 ** session.state["decays"] * float(loop.model.factor)

    def last(_epoch: int) -> None:
        session.state["decays"] += 1
        loop.model.factor *= 0.75
        restored.append(session.steps)

    loop.train(4, first=first, body=lambda *batch: loop.step(*batch, factor=scale[0]), last=last)
    return {**loop.model.state_dict(), "decays": torch.tensor(float(session.state["decays"]))}


@pytest.mark.parametrize("begin", BEGINS)
@pytest.mark.parametrize("operation", [2, 5, 7, 9, 12])
def test_a_node_that_joins_has_the_others_state_at_its_loops_beginning(begin: Begin, operation: int) -> None:
    (expected,) = on_ranks(lambda: script(begin), 1, [])
    assert_agree(on_ranks(lambda: script(begin), 1, [End(operation, (True,), (False,), 1)]), expected)


@pytest.mark.parametrize("begin", BEGINS)
@pytest.mark.parametrize("step", [3, 4, 5, 6, 10])
def test_a_run_that_resumes_has_it_too(begin: Begin, step: int) -> None:
    expected, ranks = resumed(lambda: script(begin), Keep(step, 0))
    assert_agree(ranks, expected, 0.0)
