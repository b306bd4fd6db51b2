"""What a script is told because it may matter when nodes come and go, and cannot be refused: it may not matter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn.functional import mse_loss
from torch.utils.data import DataLoader, TensorDataset

from tests.equivalence.loops import BATCH, DATA, fresh, mlp, session

Script = Callable[[Any, Callable[[Any], None]], None]


class Stopper:
    """Early stopping."""

    def __init__(self) -> None:
        self.counter = 0
        self.options = {"patience": 3}


class Pool:
    """Of past outputs."""

    def __init__(self) -> None:
        self.kept: list[torch.Tensor] = []
        self.mean = torch.zeros(1)


def said(script: Callable[[Any, Any, Callable[..., None]], None], capsys: pytest.CaptureFixture[str]) -> list[str]:
    """What a script tells; it is called with a session, its loader and a function that trains on a batch."""
    model = fresh(mlp)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    ours = session(model, optimizer)
    loader = ours.loader(DATA, global_batch_size=BATCH)

    def step(x: torch.Tensor, y: torch.Tensor, more: Any = 0.0) -> None:
        optimizer.zero_grad()
        loss = mse_loss(model(x), y) + more
        loss.backward()
        ours.step(loss)

    script(ours, loader, step)
    return [line for line in capsys.readouterr().err.splitlines() if line.startswith("pilot: ")]


@pytest.mark.parametrize("first", [False, True])
def test_a_second_loader_in_the_step(first: bool, capsys: pytest.CaptureFixture[str]) -> None:
    def script(ours: Any, loader: Any, step: Any) -> None:
        unlabelled = DataLoader(TensorDataset(DATA.tensors[0]), batch_size=2)
        for _ in ours.epochs(2):
            pairs = zip(unlabelled, loader, strict=False) if first else zip(loader, unlabelled, strict=False)
            for pair in pairs:
                step(*pair[first])
            ours.stop()

    (line,) = said(script, capsys)
    assert "test_notes.py, line " in line
    assert "DataLoader of its own, too: each rank takes its own from the whole" in line


def test_loaders_for_other_purposes_are_not_told_of(capsys: pytest.CaptureFixture[str]) -> None:
    def script(ours: Any, loader: Any, step: Any) -> None:
        validation = DataLoader(DATA, batch_size=2)
        list(validation)
        for _ in ours.epochs(2):
            for x, y in loader:
                with torch.no_grad():
                    list(validation)
                step(x, y)
                list(validation)
                ours.evaluate(DATA, lambda _: {"one": 1.0})
            list(validation)

    assert said(script, capsys) == []


def test_what_a_script_keeps_and_changes(capsys: pytest.CaptureFixture[str]) -> None:
    def script(ours: Any, loader: Any, step: Any) -> None:
        stopper, pool, count, best, losses = Stopper(), Pool(), 0, None, []
        for epoch in ours.epochs(2):
            for x, y in loader:
                count += 1
                step(x, y)
                pool.kept.append(x)
                pool.mean += 1
            losses.append(epoch)
            stopper.counter += 1
            best = epoch if best is None else best + epoch

    by_step, pools, by_epoch = said(script, capsys)
    assert "(count)" in by_step
    assert "(pool.kept, pool.mean)" in pools
    assert "(stopper.counter, best, losses)" in by_epoch
    assert "session.state or session.track" in by_epoch


def test_what_is_made_in_the_loop_kept_in_the_state_or_restored_is_not_told_of(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def script(ours: Any, loader: Any, step: Any) -> None:
        best, fixed = ours.state.get("best", 99.0), Stopper()
        for _ in ours.epochs(2):
            stopper, total = Stopper(), 0.0
            for i, (x, y) in enumerate(loader):
                step(x, y)
                stopper.counter += 1
                total += i
                best = ours.state["best"] = best - 1.0 / (1 + fixed.counter)

    def restores(ours: Any, loader: Any, step: Any) -> None:
        count = 0
        ours.on_restore(lambda: None)
        for _ in ours.epochs(1):
            for x, y in loader:
                step(x, y)
                count += 1

    assert said(script, capsys) == []
    assert said(restores, capsys) == []
