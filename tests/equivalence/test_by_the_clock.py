"""A script is told if its loss or its learning rate depends on the clock, or on a library's counter; not of what it
prints of them.
"""

from __future__ import annotations

import io
import time
from collections.abc import Callable
from datetime import datetime
from typing import Any

import pytest
import torch
from torch.nn.functional import mse_loss
from tqdm import tqdm

from tests.equivalence.loops import BATCH, DATA, fresh, mlp, session

Step = Callable[..., None]
Script = Callable[[Any, Any, Step], None]


def a_budget(ours: Any, loader: Any, step: Step) -> None:
    begun = time.time()
    for _ in ours.epochs(2):
        for x, y in loader:
            rate = 0.05 * max(0.0, 1 - (time.time() - begun) / 600)
            step(x, y, rate=rate)


def a_date(ours: Any, loader: Any, step: Step) -> None:
    for _ in ours.epochs(2):
        for x, y in loader:
            step(x, y, weight=1.0 + 1e-9 * datetime.now().second)  # as scripts write it


def a_progress_bar(ours: Any, loader: Any, step: Step) -> None:
    bar = tqdm(total=12, file=io.StringIO())
    for _ in ours.epochs(2):
        for x, y in loader:
            step(x, y, weight=min(1.0, bar.n / 10))
            bar.update()


def printed(ours: Any, loader: Any, step: Step) -> None:
    bar, begun = tqdm(total=12, file=io.StringIO()), time.time()
    for _ in ours.epochs(2):
        for number, (x, y) in enumerate(loader):
            step(x, y, rate=0.05 / (1 + number))
            bar.update()
            print(bar.n, time.time() - begun)


def said(script: Script, capsys: pytest.CaptureFixture[str]) -> list[str]:
    model = fresh(mlp)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    ours = session(model, optimizer)
    loader = ours.loader(DATA, global_batch_size=BATCH)

    def step(x: torch.Tensor, y: torch.Tensor, rate: float = 0.05, weight: float = 1.0) -> None:
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.zero_grad()
        loss = weight * mse_loss(model(x), y)
        loss.backward()
        ours.step(loss)

    script(ours, loader, step)
    return [line for line in capsys.readouterr().err.splitlines() if line.startswith("pilot: ")]


@pytest.mark.parametrize(("script", "clock"), [(a_budget, "time.time"), (a_date, "datetime.now")])
def test_by_the_clock(script: Script, clock: str, capsys: pytest.CaptureFixture[str]) -> None:
    (line,) = said(script, capsys)
    assert f"the script's loss, or how it steps, depends on the clock ({clock})" in line


def test_by_a_librarys_counter(capsys: pytest.CaptureFixture[str]) -> None:
    (line,) = said(a_progress_bar, capsys)
    assert "keeps values of its own that change in its loop (bar.n)" in line


def test_what_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert said(printed, capsys) == []
