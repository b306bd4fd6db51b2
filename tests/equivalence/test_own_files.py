"""A script is told of files that its loop writes and reads; not of those that were there, or that it only writes."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss

from tests.equivalence.loops import BATCH, DATA, fresh, mlp, session

Script = Callable[[Any, nn.Module, Any, Callable[[torch.Tensor, torch.Tensor], None], Path], None]


def the_best_weights(ours: Any, model: nn.Module, loader: Any, step: Any, folder: Path) -> None:
    path = os.path.join(folder, "best.pt")  # noqa: PTH118  # as scripts write it
    for epoch in ours.epochs(3):
        for x, y in loader:
            step(x, y)
        if epoch == 0:
            torch.save(model.state_dict(), path)
        else:
            model.load_state_dict(torch.load(path))


def in_a_folder(ours: Any, model: nn.Module, loader: Any, step: Any, folder: Path) -> None:
    """Opened, in a function."""

    def best() -> Any:
        with (folder / "best.pt").open("rb") as file:
            return torch.load(file)

    for epoch in ours.epochs(3):
        if epoch:
            model.load_state_dict(best())
        for x, y in loader:
            step(x, y)
        torch.save(model.state_dict(), folder / "best.pt")


def predictions(ours: Any, model: nn.Module, loader: Any, step: Any, folder: Path) -> None:
    for epoch in ours.epochs(3):
        soft = torch.from_numpy(np.load(f"{folder}/soft.npy")) if epoch else 0
        for x, y in loader:
            step(x, y + 0 * (soft.mean() if epoch else 0))
        np.save(f"{folder}/soft.npy", model(DATA.tensors[0]).detach().numpy())


def said(script: Script, folder: Path, capsys: pytest.CaptureFixture[str]) -> list[str]:
    model = fresh(mlp)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    ours = session(model, optimizer)
    loader = ours.loader(DATA, global_batch_size=BATCH)

    def step(x: torch.Tensor, y: torch.Tensor) -> None:
        optimizer.zero_grad()
        loss = mse_loss(model(x), y)
        loss.backward()
        ours.step(loss)

    script(ours, model, loader, step, folder)
    return [line for line in capsys.readouterr().err.splitlines() if line.startswith("pilot: ")]


@pytest.mark.parametrize("script", [the_best_weights, in_a_folder, predictions])
def test_files_that_the_loop_writes(script: Script, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (line,) = said(script, tmp_path, capsys)
    assert f"reads a file in its loop that was written since the loop began ({tmp_path}" in line


def test_other_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old = tmp_path / "data.pt"
    torch.save(torch.ones(1, dtype=torch.float64), old)
    os.utime(old, (0, 0))

    def script(ours: Any, model: nn.Module, loader: Any, step: Any, folder: Path) -> None:
        for epoch in ours.epochs(3):
            weight = torch.load(old)
            for x, y in loader:
                step(x, weight * y)
            torch.save(model.state_dict(), folder / "last.pt")
            with open(folder / "log.txt", "a") as log:  # noqa: PTH123  # as scripts write it
                log.write(f"{epoch}\n")

    assert said(script, tmp_path, capsys) == []
