"""Changes of the trained set: in void steps, after a restart, and on one rank only."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss

from pilot.core.errors import UserError
from pilot.train.state.block import Packed, unpack
from pilot.train.state.stepper import LearningRate
from pilot.train.state.training import Training
from tests.equivalence.loops import BATCH, DATA, mlp, session, sgd
from tests.equivalence.rows import on_ranks
from tests.equivalence.topics.several import Several
from tests.equivalence.topics.trained_set import LastLayer, frozen
from tests.unit.train.storm import End


@pytest.mark.parametrize("place", range(2, 16))
def test_flags_changed_after_a_void_step_are_restored(place: int) -> None:
    """The script inverts them, so it would train the other model from then on."""

    def script() -> list[torch.Tensor]:
        its = Several(session, {"a": sgd, "b": sgd}, a=mlp, b=mlp)
        models = nn.ModuleDict(its.models)
        models["b"].requires_grad_(False)
        for x, y in its.batches():
            models.zero_grad()
            mse_loss(models["a"](x) + models["b"](x), y).backward()
            its.session.step(name="ab"[its.session.steps % 2])
            for p in models.parameters():
                p.requires_grad_(not p.requires_grad)
        return [p.detach().clone() for p in models.parameters()]

    expected = script()
    for result in on_ranks(script, 2, [End(place, (False,), (True,), 0, void=True)]):
        torch.testing.assert_close(result, expected, rtol=1e-12, atol=1e-12)


def test_a_group_that_exists_is_not_added_again() -> None:
    loop = LastLayer()
    for _ in range(2):
        loop.optimizer.add_param_group({"params": loop.model[0].parameters(), "lr": 0.5})
    assert [(group["lr"], len(group["params"])) for group in loop.optimizer.param_groups] == [(0.05, 2), (0.5, 2)]


def made() -> tuple[Any, torch.optim.Optimizer, Training]:
    model = frozen()
    optimizer = torch.optim.Adam(model[2].parameters(), lr=0.01)
    return model, optimizer, Training(model, optimizer, None, None, LearningRate("none"))


def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    x, y = DATA[:BATCH]
    mse_loss(model(x), y).backward()
    optimizer.step()


def test_a_restart_continues_with_the_trained_set_whether_the_script_adds_its_group_again_or_not() -> None:
    model, optimizer, training = made()
    model[0].requires_grad_(True)
    optimizer.add_param_group({"params": model[0].parameters(), "lr": 0.003})
    step(model, optimizer)
    block = Packed(training.encoded()).to_bytes()
    others = [made(), made()]
    for *_, restored in others:
        restored.restore(unpack(block))
    again, its_optimizer, _ = others[0]
    its_optimizer.add_param_group({"params": again[0].parameters(), "lr": 0.5})
    step(model, optimizer)
    for other, steps, _ in others:
        step(other, steps)
        assert [group["lr"] for group in steps.param_groups] == [0.01, 0.003]
        torch.testing.assert_close(other.state_dict(), model.state_dict(), rtol=0, atol=0)


def test_ranks_that_choose_differently_are_refused_with_the_name() -> None:
    first = [True, False]

    def script() -> None:
        loop, unfreezes = LastLayer(), first.pop()
        loop.optimizer.add_param_group({"params": loop.model[0].parameters()})
        loop.train(first=lambda epoch: unfreezes and loop.model[0].requires_grad_(epoch == 1))

    with pytest.raises(UserError, match=r"the parameter 0\.weight is (trained|frozen) on rank 0 and"):
        on_ranks(script, 2, [])
