"""A script is told of hooks and layers that it changes in one epoch for later ones: a node that joins, or a run that
resumes, has them as they are before the loop.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss

from tests.equivalence.loops import BATCH, DATA, fresh, mlp, session


def halves(_module: nn.Module, _inputs: Any, output: torch.Tensor) -> torch.Tensor:
    return output / 2


def helper(epoch: int, model: nn.Sequential) -> None:
    if epoch == 1:
        model[1] = nn.Sigmoid()


class Trainer:
    """It changes layers and hooks in methods, which callbacks may call, too."""

    def __init__(self, model: nn.Sequential) -> None:
        self.model, self.handles = model, [model[0].register_forward_hook(halves)]
        self.callbacks = [partial(helper, model=model)]

    def switch(self) -> None:
        self.model[1] = nn.Sigmoid()

    def on_epoch(self, epoch: int) -> None:
        helper(epoch, self.model)

    @torch.no_grad()
    def return_early(self, epoch: int) -> None:
        if epoch != 1:
            return
        self.switch()

    def remove(self, epoch: int) -> None:
        for handle in self.handles:
            if epoch == 1:
                handle.remove()

    def set(self, epoch: int) -> None:
        if epoch >= 1:
            self.switch()

    def set_either(self, epoch: int) -> None:
        if epoch == 0:
            self.model[1] = nn.ReLU()
        elif epoch in (1, 2):
            self.model[1] = nn.Sigmoid()
        else:
            self.model[1] = nn.Tanh()

    def save(self, epoch: int) -> None:
        if epoch in (1, 2, 3):
            torch.save(self.model.state_dict(), "/dev/null")
            self.saved = list(self.model.parameters())


def told(
    capsys: pytest.CaptureFixture[str], begins: str = "pass", ends: str = "pass", *, restores: bool = False
) -> str:
    """The names that a script is told of which does so at an epoch's beginning, and end."""
    model = fresh(mlp)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    kept = Trainer(model)
    ours = session(model, optimizer)
    if restores:
        ours.on_restore(lambda: None)
    loader = ours.loader(DATA, global_batch_size=BATCH)

    def step(x: torch.Tensor, y: torch.Tensor) -> None:
        optimizer.zero_grad()
        loss = mse_loss(model(x), y)
        loss.backward()
        ours.step(loss)

    text = f"""
for epoch in ours.epochs(4):
    {begins}
    for x, y in loader:
        step(x, y)
    {ends}
"""
    names = {"model": model, "optimizer": optimizer, "ours": ours, "loader": loader, "step": step, "kept": kept}
    others = {"__name__": "script", "__file__": __file__, "nn": nn, "torch": torch, "halves": halves, "helper": helper}
    exec(compile(text, __file__, "exec"), {**names, **others})
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) <= 1, lines
    return "".join(line.partition("for later ones (")[2].partition(")")[0] for line in lines)


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ("if epoch == 1: model[0].register_forward_hook(halves)", "model.0.hook"),
        ("if epoch == 1: model[1].register_full_backward_hook(lambda *_: None)", "model.1.hook"),
        ("if epoch in (1, 3): kept.handles[0].remove()", "model.0.hook"),
        ("if epoch == 1: model[1].forward = torch.relu", "model.1.forward"),
        ("if epoch == 1: model[1] = nn.Sigmoid()", "model.1"),
        ("if epoch == 1: model[0].weight.register_hook(lambda g: g * 2)", "model.0.weight.hook"),
        ("if epoch == 1: model[0].weight.register_post_accumulate_grad_hook(lambda p: None)", "model.0.weight.hook"),
        ("if epoch == 1: kept.switch()", "model.1"),
        ("kept.on_epoch(epoch)", "model.1"),
        ("kept.return_early(epoch)", "model.1"),
        ("kept.remove(epoch)", "model.0.hook"),
        ("helper(epoch, model)", "model.1"),
        ("for one in kept.callbacks: one(epoch)", "model.1"),
        ("for one in [kept]: one.on_epoch(epoch)", "model.1"),
        ("if epoch == 1: optimizer.register_step_post_hook(lambda *_: None)", "optimizer.hook"),
    ],
)
def test_what_one_epochs_beginning_changes(line: str, names: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert told(capsys, line) == names
    assert told(capsys, line, restores=True) == ""


def test_what_an_epochs_end_changes(capsys: pytest.CaptureFixture[str]) -> None:
    assert told(capsys, ends="if epoch < 1: model[1] = nn.Sigmoid()") == "model.1"


@pytest.mark.parametrize(
    ("begins", "ends"),
    [
        ("if epoch >= 1: model[1] = nn.Sigmoid()", "pass"),
        ("model[1].forward = torch.relu if epoch else torch.tanh", "pass"),
        ("handle = model[1].register_forward_hook(halves)", "handle.remove()"),
        ("if epoch == 1: torch.save(model.state_dict(), '/dev/null')", "pass"),
        ("kept.set(epoch); kept.save(epoch)", "pass"),
        ("kept.set_either(epoch)", "pass"),
        ("pass", "handle = model[1].register_forward_hook(halves); model(x); handle.remove()"),
    ],
)
def test_others_are_not_told_of(begins: str, ends: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert told(capsys, begins, ends) == ""


def test_a_method_that_each_epoch_calls(capsys: pytest.CaptureFixture[str]) -> None:
    model = fresh(mlp)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    ours = session(model, optimizer)
    loader = ours.loader(DATA, global_batch_size=BATCH)

    def begin(epoch: int) -> None:
        model[1] = nn.Sigmoid() if epoch % 2 else nn.Tanh()

    for epoch in ours.epochs(3):
        begin(epoch)
        for x, y in loader:
            optimizer.zero_grad()
            loss = mse_loss(model(x), y)
            loss.backward()
            ours.step(loss)
    assert capsys.readouterr().err == ""
