"""A script by itself: the session is an ordinary loop."""

from __future__ import annotations

import difflib
import importlib
import itertools
import runpy
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import pilot.train
from pilot.core.errors import UserError
from pilot.train.state.stepper import LearningRate

COURSE = importlib.import_module("pilot.train.joining")
CLAIM = COURSE._claim  # before the tests' fixture replaces it
EXAMPLES = Path(__file__).parents[3] / "examples"


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PILOT_CONTROL_FD", raising=False)


def made(**options: Any) -> tuple[nn.Module, torch.optim.Optimizer, TensorDataset, pilot.train.Session]:
    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    data = TensorDataset(torch.arange(30.0).reshape(10, 3) / 30, torch.ones(10, 1))
    return model, optimizer, data, pilot.train.session(model, optimizer, seed=5, **options)


def train(session: pilot.train.Session, loader: Any, model: nn.Module, epochs: int) -> list[bool]:
    applied = []
    for _ in session.epochs(epochs):
        for x, y in loader:
            model.zero_grad()
            loss = nn.functional.mse_loss(model(x), y)
            loss.backward()
            applied.append(session.step(loss))
    return applied


def test_only_the_wait_for_sums_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    clock_s = itertools.count(step=100.0)
    monkeypatch.setattr(time, "monotonic", lambda: next(clock_s))  # each look is 100 s after the previous one
    model, _, data, session = made()
    train(session, session.loader(data, global_batch_size=4), model, 1)
    assert session._step.summing.waited_s == 3 * 100


def test_what_is_measured_after_an_epoch_is_reported() -> None:
    model, _, data, session = made()
    loader = session.loader(data, global_batch_size=10)
    values = iter([0.25, 0.5])
    for _ in session.epochs(2):
        for x, y in loader:
            model.zero_grad()
            nn.functional.mse_loss(model(x), y).backward()
            session.step()
        session.report(accuracy=next(values))
        assert session._training.catch_up.since is None, "nobody could take over a copy of the state"
    assert session._metrics["accuracy"] == 0.5


def test_a_session_has_one_loader_knows_its_rules_and_needs_a_batch_for_a_step() -> None:
    *_, data, session = made()
    session.loader(data, global_batch_size=4)
    with pytest.raises(UserError, match="needs a batch"):
        session.step()
    with pytest.raises(UserError, match="one training loader"):
        session.loader(data, global_batch_size=4)
    with pytest.raises(UserError, match="lr_rule"):
        made(lr_rule="cubic")
    with pytest.raises(UserError, match="schedule"):
        made(schedule="minute")


def test_a_process_has_one_session(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(COURSE, "_claim", CLAIM)
    monkeypatch.setattr(COURSE, "_claimed", [])
    made()
    with pytest.raises(UserError, match="already has a session"):
        made()


def test_a_frozen_part_may_be_in_the_optimizer_or_not() -> None:
    model = nn.Sequential(nn.Linear(2, 2).requires_grad_(False), nn.Linear(2, 1))
    for trained in (model.parameters(), model[1].parameters()):
        pilot.train.session(model, torch.optim.SGD(trained, lr=0.1))


@pytest.mark.parametrize(("rule", "factor"), [("linear", 4.0), ("sqrt", 2.0), ("none", 1.0)])
def test_the_rule_says_the_factor_of_four_nodes(rule: str, factor: float) -> None:
    assert LearningRate(rule, nodes=4).factor == factor


def test_five_changed_lines_make_the_plain_example_elastic() -> None:
    plain, elastic = ((EXAMPLES / name).read_text().splitlines() for name in ("digits_cnn_plain.py", "digits_cnn.py"))
    changed = [line for line in difflib.ndiff(plain, elastic) if line.startswith("+ ") and line[2:].strip()]
    assert len(changed) <= 5, changed


@pytest.mark.parametrize("name", ["digits_cnn_plain", "digits_cnn", "digits_mlp", "regression", "tiny_gpt", "char_gpt"])
def test_the_examples_run_under_plain_python(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [f"{name}.py", "--iterations" if name == "char_gpt" else "--epochs", "1"])
    try:
        runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    finally:
        torch.set_default_dtype(torch.float32)
    assert capsys.readouterr().out.strip()
