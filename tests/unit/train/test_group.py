"""A script by itself: the session is an ordinary loop."""

from __future__ import annotations

import difflib
import importlib
import itertools
import runpy
import sys
import time
from pathlib import Path

import pytest
import torch
from torch import nn

import pilot.train
from pilot.core.errors import UserError
from tests.equivalence.loops import DATA, Loop

JOINING = importlib.import_module("pilot.train.joining")
CLAIM = JOINING._claim  # before the tests' fixture replaces it
EXAMPLES = Path(__file__).parents[3] / "examples"


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PILOT_CONTROL_FD", raising=False)


def test_only_the_wait_for_sums_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    clock_s = itertools.count(step=100.0)
    monkeypatch.setattr(time, "monotonic", lambda: next(clock_s))  # each reading is 100 s after the previous one
    loop = Loop().train(1)
    assert loop.session._step.summing.waited_s == loop.session.steps * 100


def test_a_measure_after_an_epoch_is_reported() -> None:
    loop = Loop()

    def last(epoch: int) -> None:
        loop.session.report(accuracy=0.25 * (1 + epoch))
        assert loop.session._training.catch_up.since is None, "nobody could take over a copy of the state"

    loop.train(last=last)
    assert loop.session._metrics["accuracy"] == 0.5


def test_a_session_has_one_loader_knows_its_rules_and_needs_a_batch_for_a_step() -> None:
    loop = Loop()
    with pytest.raises(UserError, match="needs a batch"):
        loop.session.step()
    with pytest.raises(UserError, match="one training loader"):
        loop.session.loader(DATA, global_batch_size=4)
    for options, line in [({"lr_rule": "cubic"}, "lr_rule"), ({"schedule": "minute"}, "schedule")]:
        with pytest.raises(UserError, match=line):
            Loop(**options)


def test_a_process_has_one_session(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(JOINING, "_claim", CLAIM)
    monkeypatch.setattr(JOINING, "_claimed", [])
    Loop()
    with pytest.raises(UserError, match="already has a session"):
        Loop()


def test_a_frozen_part_may_be_in_the_optimizer_or_not() -> None:
    model = nn.Sequential(nn.Linear(2, 2).requires_grad_(False), nn.Linear(2, 1))
    for trained in (model.parameters(), model[1].parameters()):
        pilot.train.session(model, torch.optim.SGD(trained, lr=0.1))


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
