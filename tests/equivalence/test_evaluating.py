"""What a script does around an evaluation and draws after it, whatever happens meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch.nn.functional import mse_loss

from tests.equivalence.loops import (
    BATCH,
    DATA,
    Plain,
    Result,
    a_step,
    an_epoch,
    assert_equal,
    batches,
    fresh,
    linear,
    mlp,
    session,
    tensors,
)
from tests.equivalence.rows import in_world, on_ranks
from tests.unit.train.storm import End, Keep

VALUES = torch.utils.data.Subset(DATA, range(8))


def evaluates_between_steps(made: Callable[..., Any], *, every: int, loop: str = "epochs") -> Result:
    """Without looking at what the step returned, it changes the rate, a weight and its state after the evaluation."""
    net = fresh(linear)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    ours = made({"M": net}, {"M": optimizer})
    loader = ours.loader(DATA, global_batch_size=BATCH)
    for x, y in batches(ours, loader, loop):
        a_step(ours, net, optimizer, x, y)
        if ours.steps and ours.steps % every == 0:
            if made is not Plain:
                ours.evaluate(VALUES, lambda batch: {"loss": mse_loss(net(batch[0]), batch[1])}, batch_size=2)
            optimizer.param_groups[0]["lr"] *= 0.9
            ours.state["evaluations"] = ours.state.get("evaluations", 0) + 1
            with torch.no_grad():
                net.weight.mul_(0.9)
    return tensors(net=net, optimizer=optimizer, state=dict(ours.state))


@pytest.mark.parametrize("loop", ["epochs", "iterations"])
@pytest.mark.parametrize("every", [1, 3])
def test_what_follows_an_evaluation_counts_once_if_the_step_before_it_is_void(every: int, loop: str) -> None:
    script = partial(evaluates_between_steps, every=every, loop=loop)
    assert_equal(script, operations=range(2, 40, 7), joins=range(3, 40, 9))


def draws(made: Callable[..., Any], where: str, after: bool) -> Result:
    """What it draws at an epoch's beginning or end scales the losses of the next steps; a measure draws, too."""
    net = fresh(linear)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    ours = made({"M": net}, {"M": optimizer})
    loader = ours.loader(DATA, global_batch_size=BATCH)
    ours.state["factor"] = 1.0

    def drawn() -> None:
        if after:
            ours.evaluate(VALUES, lambda batch: {"loss": mse_loss(net(batch[0]), batch[1]) * torch.rand(())})
        ours.state["factor"] = float(torch.rand(()))

    for _ in ours.epochs(3):
        if where == "beginning":
            drawn()
        for x, y in loader:
            optimizer.zero_grad()
            loss = mse_loss(net(x), y) * ours.state["factor"]
            loss.backward()
            ours.step(loss)
        if where == "end":
            drawn()
    return tensors(net=net, state=dict(ours.state))


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("where", ["beginning", "end"])
@pytest.mark.parametrize(("step", "point"), [(4, 0), (6, 0), (6, 1), (6, 2), (6, 3), (8, 1)])
def test_a_run_that_resumes_draws_the_same(where: str, after: bool, step: int, point: int) -> None:
    """Whatever its process has drawn before."""
    script = partial(draws, session, where, after)
    torch.manual_seed(3)
    world, (expected,) = in_world(script, 1, [], keep=Keep(step, point))
    if world.kept_state is None:
        pytest.skip("the run has fewer points there")
    torch.manual_seed(4)
    _, (resumed,) = in_world(script, 1, [], begin=world.kept_state)
    for name, value in expected.items():
        assert bool(torch.as_tensor(resumed[name] == value).all()), name


def test_a_measure_that_draws_leaves_the_generators_as_they_were() -> None:
    """Ranks measure different samples, or none, and draw the same afterwards."""
    net = fresh(linear)
    ours = session(net, torch.optim.SGD(net.parameters(), lr=0.1))
    ours.loader(DATA, global_batch_size=BATCH)
    for _ in ours.epochs(1):
        before = torch.get_rng_state()
        ours.evaluate(VALUES, lambda batch: {"noise": torch.rand(()) + 0 * mse_loss(net(batch[0]), batch[1])})
        assert torch.equal(torch.get_rng_state(), before)
        ours.stop()
        break


@pytest.mark.parametrize("by_name", [False, True])
def test_a_list_of_the_state_stays_the_same(by_name: bool) -> None:
    """Also where a node joins in the midst of an evaluation whose result is added to it."""

    def script() -> Any:
        model = fresh(mlp)
        ours = session(model, torch.optim.SGD(model.parameters(), lr=0.05))
        loader = ours.loader(DATA, global_batch_size=BATCH)
        kept = ours.state.setdefault("its", [])
        for _ in ours.epochs(3):
            an_epoch(ours, loader, model, model)
            its = kept if by_name else ours.state["its"]
            its.append(ours.evaluate(DATA, lambda batch: {"loss": mse_loss(model(batch[0]), batch[1])})["loss"])
        return ours.state["its"]

    expected = script()
    assert len(expected) == 3
    for operation in range(4, 14):
        for its in on_ranks(script, 1, [End(operation, (True,), (False,), 1)]):
            assert its == pytest.approx(expected, rel=1e-12), operation
