"""A tracked object that the script asks at an epoch's end whether to go on: a node that joins there, or a run that
resumes from there, asks it as the others have done, and not once more.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch.nn.functional import mse_loss

from pilot.train.ranks import script_end
from tests.equivalence.loops import BATCH, DATA, Plain, Result, an_epoch, assert_equal, fresh, mlp, session, tensors
from tests.equivalence.rows import in_world
from tests.unit.train.storm import Keep


class Patience:
    """Ends the training at the first epoch that is not better than the ones before."""

    def __init__(self) -> None:
        self.best, self.is_over = math.inf, False

    def sees(self, loss: float) -> None:
        self.best, self.is_over = min(loss, self.best), loss >= self.best

    def state_dict(self) -> dict[str, Any]:
        return dict(vars(self))

    def load_state_dict(self, state: dict[str, Any]) -> None:
        vars(self).update(state)


def stops_early(made: Callable[..., Any], *, evaluates: bool) -> Result:
    """It asks once in each epoch."""
    net, patience = fresh(mlp), Patience()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    ours = made(net, optimizer)
    ours.track("patience", patience)
    loader = ours.loader(DATA, global_batch_size=BATCH)
    for _ in ours.epochs(3):
        an_epoch(ours, loader, net, optimizer)
        if evaluates and made is not Plain:
            ours.evaluate(DATA, lambda batch: {"loss": mse_loss(net(batch[0]), batch[1])})
        with torch.no_grad():
            patience.sees(mse_loss(net(DATA.tensors[0]), DATA.tensors[1]).item())
        if patience.is_over:
            break
    return tensors(net=net, patience=patience)


@pytest.mark.parametrize("evaluates", [False, True])
def test_a_node_that_joins_or_dies_there(evaluates: bool) -> None:
    assert_equal(partial(stops_early, evaluates=evaluates), operations=range(5, 11), joins=range(5, 13))


def leaves_by_break() -> Result:
    """After what it does at an epoch's end."""
    net = fresh(mlp)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    ours = session(net, optimizer)
    loader = ours.loader(DATA, global_batch_size=BATCH)
    for epoch in ours.epochs(3):
        an_epoch(ours, loader, net, optimizer)
        with torch.no_grad():
            ours.state["losses"] = [
                *ours.state.get("losses", []),
                mse_loss(net(DATA.tensors[0]), DATA.tensors[1]).item(),
            ]
        if epoch == 1:
            break
    result = tensors(net=net, losses=ours.state["losses"])
    script_end.script_ended()
    return result


@pytest.mark.parametrize("point", range(8))
def test_a_run_that_resumes_after_the_loop_was_left(point: int) -> None:
    """Or from any moment between the last step and that: the code at the epoch's end is in the state, or runs."""
    expected, (world, _) = leaves_by_break(), in_world(leaves_by_break, 1, [], keep=Keep(12, point))
    assert world.kept_state is not None
    for count in (1, 2):
        for result in in_world(leaves_by_break, count, [], begin=world.kept_state)[1]:
            torch.testing.assert_close(result, expected, rtol=0.0, atol=0.0)
