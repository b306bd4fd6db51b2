"""A script by itself: the session is an ordinary loop."""

from __future__ import annotations

import copy
import difflib
import itertools
import random
import runpy
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import Dataset, TensorDataset

import pilot.train
from pilot.core.errors import UserError
from pilot.train.data.order import permutation

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


@pytest.mark.parametrize("micro", [None, 2])
def test_it_does_what_a_plain_loop_does_in_the_same_order(micro: int | None) -> None:
    model, _, data, session = made()
    plain = copy.deepcopy(model)
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1, momentum=0.9)
    applied = train(session, session.loader(data, global_batch_size=4, micro_batch_size=micro), model, 3)
    for epoch in range(3):
        order = permutation(5, epoch, 10)
        for start in range(0, 10, 4):
            x, y = data[order[start : start + 4]]
            optimizer.zero_grad()
            nn.functional.mse_loss(plain(x), y).backward()
            optimizer.step()
    assert sum(applied) == session.steps == 9
    torch.testing.assert_close(dict(model.state_dict()), dict(plain.state_dict()))


def test_only_the_wait_for_sums_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    clock_s = itertools.count(step=100.0)
    monkeypatch.setattr(time, "monotonic", lambda: next(clock_s))  # each look is 100 s after the previous one
    model, _, data, session = made()
    train(session, session.loader(data, global_batch_size=4), model, 1)
    assert session._step.waited_s == 3 * 100


def test_the_scheduler_counts_steps_or_epochs() -> None:
    for schedule, count in (("step", 9), ("epoch", 3)):
        model, optimizer, data, _ = made()
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
        session = pilot.train.session(model, optimizer, scheduler, schedule=schedule)
        train(session, session.loader(data, global_batch_size=4), model, 3)
        assert scheduler.last_epoch == count


def test_gradients_are_clipped_for_one_step() -> None:
    model, optimizer, data, session = made()
    optimizer.param_groups[0].update(lr=1.0, momentum=0.0)
    loader = session.loader(data, global_batch_size=10)
    before = [p.detach().clone() for p in model.parameters()]
    for _ in session.epochs(1):
        for x, y in loader:
            model.zero_grad()
            (100 * nn.functional.mse_loss(model(x), y)).backward()
            session.clip_grad_norm(0.01)
            session.step()
    moved = torch.cat([(p - q).flatten() for p, q in zip(model.parameters(), before, strict=True)])
    assert moved.norm().item() == pytest.approx(0.01, rel=1e-3)


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
    assert session._metrics["accuracy"] == 0.5
    with pytest.raises(UserError, match=r"call session.report\(accuracy=function\(\)\)"):
        session.epochs(2, accuracy=lambda: 0.5)


class _Noisy(Dataset[float]):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Any:
        return index, torch.rand(()).item() + np.random.rand() + random.random()


@pytest.mark.parametrize("workers", [0, 2])
def test_augmentation_depends_on_the_sample_and_the_epoch_alone(workers: int) -> None:
    seen: list[dict[int, float]] = []
    for batch_size in (2, 3):
        model, _, _, session = made()
        loader = session.loader(_Noisy(), global_batch_size=batch_size, num_workers=workers)
        for _ in session.epochs(2):
            values: dict[int, float] = {}
            for index, value in loader:
                values |= dict(zip(index.tolist(), value.tolist(), strict=True))
                model.zero_grad()
                model(torch.ones(1, 3)).sum().backward()
                session.step()
            seen.append(values)
    assert seen[0] == seen[2]
    assert seen[1] == seen[3]
    assert seen[0] != seen[1]


def test_a_batch_without_its_step_is_noticed() -> None:
    model, _, data, session = made()
    loader = session.loader(data, global_batch_size=4)
    with pytest.raises(UserError, match="without calling session"):
        for _ in session.epochs(1):
            for x, _y in loader:
                model(x)


def test_a_step_without_a_batch_is_noticed() -> None:
    *_, session = made()
    with pytest.raises(UserError, match="needs a batch"):
        session.step()


def test_a_session_has_one_loader_and_knows_its_rules() -> None:
    *_, data, session = made()
    session.loader(data, global_batch_size=4)
    with pytest.raises(UserError, match="one training loader"):
        session.loader(data, global_batch_size=4)
    with pytest.raises(UserError, match="lr_rule"):
        made(lr_rule="cubic")
    with pytest.raises(UserError, match="schedule"):
        made(schedule="minute")


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
