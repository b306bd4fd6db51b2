"""What is transferred and what steps: optimizers, schedulers, frozen and tied parameters, buffers, compiled modules."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler
from torch.utils.data import TensorDataset

import pilot.train
from pilot.core.errors import UserError
from pilot.train.data.sampler import StepShare
from pilot.train.state.block import Packed, unpack
from pilot.train.state.progress import END_OF_EPOCH
from pilot.train.state.stepper import LearningRate
from pilot.train.state.training import Training


class Tied(nn.Module):
    """A frozen layer, a batch norm, a tied weight, and a layer used only in some steps."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Linear(4, 4).requires_grad_(False)
        self.norm = nn.BatchNorm1d(4)
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 4)
        self.last.weight = self.first.weight
        self.rare = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, *, rare: bool = False) -> torch.Tensor:
        hidden = self.first(self.norm(self.frozen(x)))
        return self.last(self.rare(hidden) if rare else hidden).square().mean()


def made(
    optimizer: Callable[[Any], torch.optim.Optimizer] = torch.optim.AdamW,
    scheduler: Callable[[Any], Any] = lambda o: lr_scheduler.CosineAnnealingLR(o, 10),
    seed: int = 0,
) -> tuple[Tied, Training]:
    torch.manual_seed(seed)
    model = Tied()
    steps = optimizer([p for p in model.parameters() if p.requires_grad])
    return model, Training(model, steps, scheduler(steps), "step", LearningRate("linear"))


def step(model: Tied, training: Training, number: int) -> None:
    training.steppers.optimizers[""].zero_grad()
    torch.manual_seed(number)
    model(torch.randn(6, 4), rare=number % 3 == 0).backward()
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
    model, training = made(lambda p: torch.optim.SGD(p, lr=0.1), lambda o: lr_scheduler.StepLR(o, 1, 0.5))
    training.rate.nodes = 4
    rates = []
    for number in range(4):
        step(model, training, number)
        rates.append(training.metrics()["learning_rate"])
    assert rates == pytest.approx([0.4 * 0.5**number for number in range(4)])


def test_a_plateau_lowers_the_rate_after_what_was_measured() -> None:
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    scheduler = lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=0)
    session = pilot.train.session(model, optimizer, scheduler, schedule="loss")
    loader = session.loader(TensorDataset(torch.ones(4, 2)), global_batch_size=4)
    losses, rates = iter([3.0, 2.0, 2.0, 1.0]), []
    for _ in session.epochs(4):
        rates.append(optimizer.param_groups[0]["lr"])
        for (x,) in loader:
            model.zero_grad()
            model(x).sum().backward()
            session.step()
        session.report(loss=next(losses))
    assert rates == [1.0, 1.0, 1.0, 0.5]


def test_a_plateau_says_what_it_needs() -> None:
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    scheduler = lr_scheduler.ReduceLROnPlateau(optimizer)
    with pytest.raises(UserError, match="needs a measure"):
        Training(model, optimizer, scheduler, "epoch", LearningRate("none"))
    training = Training(model, optimizer, scheduler, "loss", LearningRate("none"))
    with pytest.raises(UserError, match=r"session.report\(loss=...\)"):
        training.agree(END_OF_EPOCH, {"accuracy": 1.0})


def test_who_comes_at_the_end_of_an_epoch_does_once_what_belongs_there() -> None:
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


def test_what_a_script_changes_while_it_is_behind_its_state_does_not_count() -> None:
    (_, training), (_, lagging) = made(), made()
    training.user["epochs"] = 5
    training.position.begun = True
    lagging.restore(training.capture())
    lagging.user["epochs"] += 1
    assert lagging.capture()["user"] == {"epochs": 5}
    lagging.catch_up.arrives()
    assert lagging.user == {"epochs": 5}


@pytest.mark.parametrize(
    "backend",
    [
        "aot_eager",
        pytest.param(
            "inductor", marks=[pytest.mark.slow, pytest.mark.skipif(not shutil.which("g++"), reason="no C++ compiler")]
        ),
    ],
)
def test_a_compiled_module_trains_and_its_state_is_that_of_the_plain_one(
    backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.startswith("pyomo.common.dependencies.")]:
        monkeypatch.delitem(sys.modules, name)  # no training process has them, and torch's pickler asks each for a name
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    model = torch.compile(plain, backend=backend)
    session = pilot.train.session(model, torch.optim.SGD(model.parameters(), lr=0.1))
    loader = session.loader(TensorDataset(torch.randn(8, 4)), global_batch_size=8, micro_batch_size=4)
    before = plain[0].weight.detach().clone()
    for _ in session.epochs(2):
        for (x,) in loader:
            model.zero_grad()
            model(x).square().mean().backward()
            session.step()
    assert session.steps == 2
    assert not torch.equal(plain[0].weight, before)
    assert list(session._training.capture()["model"]) == list(plain.state_dict())
