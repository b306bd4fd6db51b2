"""A rank's state after it was taken over: rates, user state at an epoch's end, compiled modules."""

from __future__ import annotations

import shutil
import sys
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler
from torch.utils.data import TensorDataset

from pilot.core.errors import UserError
from pilot.train.data.sampler import StepShare
from pilot.train.state.block import Packed, unpack
from pilot.train.state.progress import END_OF_EPOCH
from pilot.train.state.stepper import LearningRate
from pilot.train.state.training import Training
from tests.equivalence.loops import Loop


def made(seed: int = 0) -> tuple[nn.Module, Training]:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return model, Training(model, optimizer, lr_scheduler.StepLR(optimizer, 1, 0.5), "step", LearningRate("linear"))


def step(model: nn.Module, training: Training, number: int) -> None:
    training.steppers.optimizers[""].zero_grad()
    torch.manual_seed(number)
    model(torch.randn(6, 4)).square().mean().backward()
    training.clip(0.5)
    training.apply(1, StepShare(number, number + 1, 1, ((number, number + 1),)))


def test_ranks_that_take_over_the_same_bytes_share_nothing_afterwards() -> None:
    (model, training), (other, newcomer) = made(), made(seed=1)
    for number in range(4):
        step(model, training, number)
    block = Packed(training.encoded()).to_bytes()
    before = bytes(block)
    newcomer.restore(unpack(block))
    for number in range(4, 8):
        step(other, newcomer, number)
    assert bytes(block) == before


def test_the_effective_rate_is_that_of_the_step() -> None:
    model, training = made()
    training.rate.nodes = 4
    rates = []
    for number in range(4):
        step(model, training, number)
        rates.append(training.metrics()["learning_rate"])
    assert rates == pytest.approx([0.4 * 0.5**number for number in range(4)])


@pytest.mark.parametrize(("rule", "factor"), [("linear", 4.0), ("sqrt", 2.0), ("none", 1.0)])
def test_the_rule_gives_the_factor_of_four_nodes(rule: str, factor: float) -> None:
    assert LearningRate(rule, nodes=4).factor == factor


def test_a_plateau_needs_its_measure() -> None:
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    training = Training(model, optimizer, lr_scheduler.ReduceLROnPlateau(optimizer), "loss", LearningRate("none"))
    with pytest.raises(UserError, match=r"session.report\(loss=...\)"):
        training.agree(END_OF_EPOCH, {"accuracy": 1.0})


def test_a_rank_that_comes_at_the_end_of_an_epoch_runs_its_code_once() -> None:
    (_, training), (_, newcomer) = made(), made()
    training.user["epochs"] = 4
    training.reached_end()
    training.user["epochs"] += 1
    newcomer.restore(training.capture())
    assert newcomer.user == {"epochs": 4}
    training.agree(END_OF_EPOCH, {})
    newcomer.restore(training.capture())
    assert newcomer.position.epoch == 0
    newcomer.passes(END_OF_EPOCH, *newcomer.agreements.of(newcomer.place, END_OF_EPOCH))
    assert newcomer.place == training.place == (1, 0)
    training.catch_up.arrives()
    assert training.capture()["user"] == {"epochs": 5}


def test_changes_of_a_script_that_is_behind_its_state_do_not_count() -> None:
    (_, training), (_, lagging) = made(), made()
    training.user["epochs"] = 5
    training.position.begun = True
    lagging.restore(training.capture())
    lagging.user["epochs"] += 1
    assert lagging.capture()["user"] == {"epochs": 5}
    lagging.catch_up.arrives()
    assert lagging.user == {"epochs": 5}


NO_COMPILER = pytest.mark.skipif(not shutil.which("g++"), reason="no C++ compiler")


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=[pytest.mark.slow, NO_COMPILER])])
def test_a_compiled_module_trains_and_its_state_is_that_of_the_plain_one(
    backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.startswith("pyomo.common.dependencies.")]:
        monkeypatch.delitem(sys.modules, name)  # no training process has them, and torch's pickler asks each for a name
    plain: Any = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    before = plain[0].weight.detach().clone()
    sizes = {"global_batch_size": 8, "micro_batch_size": 4}
    model = torch.compile(plain, backend=backend)
    loop = Loop(model=model, data=TensorDataset(torch.randn(8, 4)), loader=sizes).train()
    assert loop.session.steps == 2
    assert not torch.equal(plain[0].weight, before)
    assert list(loop.session._training.capture()["model"]) == list(plain.state_dict())
