"""The trained set changes at the start of an epoch: nodes that join later, and a restart, know of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss
from torch.nn.utils import prune

from pilot.core.errors import UserError
from pilot.train.state.block import Packed, unpack
from pilot.train.state.stepper import LearningRate
from pilot.train.state.training import Training
from tests.equivalence.loops import BATCH, DATA, Result, Script, assert_equal, fresh, mlp, session, tensors, trained
from tests.equivalence.rows import on_ranks
from tests.equivalence.topics.several import Loop, frozen
from tests.unit.train.storm import End

Change = Callable[[nn.Module, torch.optim.Optimizer, int], None]


def changing(made: Callable[..., Any], model: nn.Module, optimizer: torch.optim.Optimizer, change: Change) -> Result:
    result = trained(made, model, optimizer, at_first=lambda epoch: change(model, optimizer, epoch), epochs=3)
    return result | tensors(flags=[int(parameter.requires_grad) for parameter in model.parameters()])


def unfrozen(made: Callable[..., Any]) -> Result:
    """The optimizer has them all from the start."""

    def change(model: Any, _optimizer: Any, epoch: int) -> None:
        if epoch == 1:
            model[0].requires_grad_(True)

    model = frozen()
    return changing(made, model, torch.optim.Adam(model.parameters(), lr=0.01), change)


def pruned_further(made: Callable[..., Any]) -> Result:
    """Iterative magnitude pruning, by the current weights: ``layer.weight`` is that of the last forward."""
    model = fresh(mlp)
    prune.identity(model[0], "weight")

    def change(model: Any, _optimizer: Any, epoch: int) -> None:
        if epoch > 0:
            scores = model[0].weight_orig.detach() * model[0].weight_mask
            prune.l1_unstructured(model[0], "weight", amount=0.3, importance_scores=scores)

    return changing(made, model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9), change)


def layer_by_layer(made: Callable[..., Any]) -> Result:
    """One more group in each epoch; and the last layer is frozen in the last one."""

    def change(model: Any, optimizer: Any, epoch: int) -> None:
        if epoch == 1:
            optimizer.add_param_group({"params": [model[0].weight.requires_grad_()], "lr": 0.003})
        if epoch == 2:
            optimizer.add_param_group({"params": model[0].bias.requires_grad_(), "momentum": 0.5})
            model[2].requires_grad_(False)

    model = frozen()
    return changing(made, model, torch.optim.SGD(model[2].parameters(), lr=0.01, momentum=0.9), change)


def frozen_later(made: Callable[..., Any]) -> Result:
    """In alternation."""

    def change(model: Any, _optimizer: Any, epoch: int) -> None:
        model[0].requires_grad_(epoch % 2 == 0)

    model = fresh(mlp)
    return changing(made, model, torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9), change)


def by_name(made: Callable[..., Any]) -> Result:
    """An optimizer that knows its parameters' names."""

    def change(model: Any, optimizer: Any, epoch: int) -> None:
        if epoch == 1:
            model[0].requires_grad_(True)
            optimizer.add_param_group({"params": list(model[0].named_parameters()), "lr": 0.003})

    model = frozen()
    return changing(made, model, torch.optim.SGD(model[2].named_parameters(), lr=0.01, momentum=0.9), change)


SCRIPTS: list[Script] = [
    unfrozen,
    pruned_further,
    layer_by_layer,
    frozen_later,
    by_name,
]


@pytest.mark.parametrize("script", SCRIPTS, ids=[script.__name__ for script in SCRIPTS])
def test_equal_to_the_plain_loop(script: Script) -> None:
    assert_equal(script, operations=range(5, 24, 2), joins=range(4, 30, 3))


def made() -> tuple[Any, torch.optim.Optimizer, Training]:
    model = frozen()
    optimizer = torch.optim.Adam(model[2].parameters(), lr=0.01)
    return model, optimizer, Training(model, optimizer, None, None, LearningRate("none"))


def a_step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    x, y = DATA[:BATCH]
    mse_loss(model(x), y).backward()
    optimizer.step()


@pytest.mark.parametrize("place", range(2, 16))
def test_what_is_frozen_after_a_step_is_as_before_where_the_step_is_void(place: int) -> None:
    """The script turns it around, so it would train the other one from then on."""

    def script() -> list[torch.Tensor]:
        parts = {name: fresh(mlp) for name in "ab"}
        ours = session(parts, {name: torch.optim.SGD(one.parameters(), lr=0.05) for name, one in parts.items()})
        parts["b"].requires_grad_(False)
        loader = ours.loader(DATA, global_batch_size=BATCH)
        for _ in ours.epochs(2):
            for x, y in loader:
                for one in parts.values():
                    one.zero_grad()
                mse_loss(parts["a"](x) + parts["b"](x), y).backward()
                ours.step(name="ab"[ours.steps % 2])
                for p in (*parts["a"].parameters(), *parts["b"].parameters()):
                    p.requires_grad_(not p.requires_grad)
        return [p.detach().clone() for one in parts.values() for p in one.parameters()]

    expected = script()
    for result in on_ranks(script, 2, [End(place, (False,), (True,), 0, void=True)]):
        torch.testing.assert_close(result, expected, rtol=1e-12, atol=1e-12)


def test_a_group_that_there_is_already_is_not_added_again() -> None:
    model = frozen()
    optimizer = torch.optim.SGD(model[2].parameters(), lr=0.1)
    session(model, optimizer)
    for _ in range(2):
        optimizer.add_param_group({"params": model[0].parameters(), "lr": 0.5})
    assert [(group["lr"], len(group["params"])) for group in optimizer.param_groups] == [(0.1, 2), (0.5, 2)]


def test_a_restart_goes_on_with_what_was_trained_whether_the_script_adds_its_group_again_or_not() -> None:
    model, optimizer, training = made()
    model[0].requires_grad_(True)
    optimizer.add_param_group({"params": model[0].parameters(), "lr": 0.003})
    a_step(model, optimizer)
    block = Packed(training.encoded()).to_bytes()
    others = [made(), made()]
    for *_, restored in others:
        restored.restore(unpack(block))
    again = others[0]
    again[1].add_param_group({"params": again[0][0].parameters(), "lr": 0.5})
    a_step(model, optimizer)
    for other, steps, _ in others:
        a_step(other, steps)
        assert [group["lr"] for group in steps.param_groups] == [0.01, 0.003]
        torch.testing.assert_close(other.state_dict(), model.state_dict(), rtol=0, atol=0)


def test_ranks_that_choose_differently_are_refused_with_the_name() -> None:
    def script() -> None:
        loop = Loop()
        if first.pop():
            loop.optimizer.add_param_group({"params": loop.model[0].parameters()})
            loop.passes(lambda epoch: loop.model[0].requires_grad_(epoch == 1))
        else:
            loop.optimizer.add_param_group({"params": loop.model[0].parameters()})
            loop.passes(lambda _: None)

    first = [True, False]
    with pytest.raises(UserError, match=r"the parameter 0\.weight is (trained|frozen) on rank 0 and"):
        on_ranks(script, 2, [])
