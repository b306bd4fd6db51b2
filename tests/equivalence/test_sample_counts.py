"""A script is told if its learning rate or loss depends on a count of samples or tokens to which each rank adds its own
share's; with ``session.samples`` it trains as one undisturbed process.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss

from tests.equivalence.loops import BATCH, DATA, GROWS_AND_SHRINKS, fresh, mlp, session
from tests.equivalence.rows import on_ranks

Script = Callable[[Any, Any, nn.Module, torch.optim.Optimizer], None]


def stepped(ours: Any, optimizer: torch.optim.Optimizer, loss: torch.Tensor) -> bool:
    optimizer.zero_grad()
    loss.backward()
    return bool(ours.step(loss))


def warm_up(ours: Any, loader: Any, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    ours.state["seen"] = 0
    for _ in ours.epochs(2):
        for x, y in loader:
            for group in optimizer.param_groups:
                group["lr"] = 0.05 * min(1, (1 + ours.state["seen"]) / 40)
            if stepped(ours, optimizer, mse_loss(model(x), y)):
                ours.state["seen"] += len(x)


def tokens(ours: Any, loader: Any, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """As in minGPT."""
    ours.state["tokens"] = 0
    for _ in ours.epochs(2):
        for x, y in loader:
            if stepped(ours, optimizer, mse_loss(model(x), y)):
                ours.state["tokens"] += int((y > -1e9).sum())
                progress = ours.state["tokens"] / 44
                for group in optimizer.param_groups:
                    group["lr"] = 0.05 * max(0.1, 1 - progress)


def fades_in(ours: Any, loader: Any, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """As in ProGAN; the size in a variable."""
    ours.state["alpha"] = 1e-5
    for _ in ours.epochs(2):
        for x, y in loader:
            alpha, size = ours.state["alpha"], x.shape[0]
            if stepped(ours, optimizer, mse_loss(model(x), y) * alpha):
                ours.state["alpha"] = min(1.0, alpha + size / (2 * len(DATA)))


def a_variable(ours: Any, loader: Any, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    seen = 0
    for _ in ours.epochs(2):
        for x, y in loader:
            optimizer.param_groups[0]["lr"] = 0.05 / (1 + seen)
            stepped(ours, optimizer, mse_loss(model(x), y))
            seen += x.size(0)


class Trainer:
    """Counts in an attribute, by iteration, in a function of its own."""

    def __init__(self, ours: Any, loader: Any, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self.ours, self.loader, self.model, self.optimizer = ours, loader, model, optimizer
        self.seen = 0

    def run(self) -> None:
        for _ in self.ours.iterations(12):
            self.one_step(*self.loader.next())

    def one_step(self, x: torch.Tensor, y: torch.Tensor) -> None:
        self.optimizer.zero_grad()
        weight = min(1.0, (1 + self.seen) / 40)
        loss = mse_loss(self.model(x), y) * weight
        loss.backward()
        if self.ours.step(loss):
            self.seen += y.numel()


def an_attribute(*parts: Any) -> None:
    Trainer(*parts).run()


COUNTS = {
    warm_up: "session.state['seen']",
    tokens: "session.state['tokens']",
    fades_in: "session.state['alpha']",
    a_variable: "seen",
    an_attribute: "self.seen",
}


def trained(script: Script) -> list[torch.Tensor]:
    model = fresh(mlp)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    ours = session(model, optimizer)
    script(ours, ours.loader(DATA, global_batch_size=BATCH), model, optimizer)
    return [one.detach().clone() for one in model.parameters()]


def said(script: Script, capsys: pytest.CaptureFixture[str]) -> list[str]:
    trained(script)
    return [line for line in capsys.readouterr().err.splitlines() if line.startswith("pilot: ")]


@pytest.mark.parametrize("script", COUNTS)
def test_counts_of_the_processs_own_share(script: Script, capsys: pytest.CaptureFixture[str]) -> None:
    (line,) = said(script, capsys)
    assert f"depends on a count of samples or tokens ({COUNTS[script]}) to which each rank adds" in line
    assert "use session.samples" in line


def by_the_session(ours: Any, loader: Any, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for _ in ours.epochs(2):
        for x, y in loader:
            for group in optimizer.param_groups:
                group["lr"] = 0.05 * min(1, (1 + ours.samples) / 40)
            stepped(ours, optimizer, mse_loss(model(x), y) * min(1.0, 0.1 + ours.samples / 30))


def reported(ours: Any, loader: Any, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    ours.state.update(seen=0, correct=0, total=0.0, steps=0)
    for _ in ours.epochs(2):
        for x, y in loader:
            out = model(x)
            for group in optimizer.param_groups:
                group["lr"] = 0.05 / (1 + ours.state["steps"] / len(loader))
            if stepped(ours, optimizer, loss := mse_loss(out, y)):
                ours.state["steps"] += 1
                ours.state["seen"] += len(x)
                ours.state["correct"] += int((out > 0).eq(y > 0).sum())
                ours.state["total"] += loss.item() * len(x)
            print(ours.state["seen"], ours.state["total"] / ours.state["seen"])
            ours.report(correct=ours.state["correct"], seen=ours.state["seen"])


class Meter:
    def __init__(self) -> None:
        self.count = 0


def of_an_epoch(ours: Any, loader: Any, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """It divides by the epoch's samples."""
    for _ in ours.epochs(2):
        meter, ours.state["count"] = Meter(), 0
        for x, y in loader:
            stepped(ours, optimizer, mse_loss(model(x), y))
            meter.count += len(x)
            ours.state["count"] += len(x)
        for group in optimizer.param_groups:
            group["lr"] = 0.05 * ours.state["count"] / meter.count


@pytest.mark.parametrize("script", [by_the_session, reported, of_an_epoch])
def test_the_sessions_count_and_reports_are_not_told_of(script: Script, capsys: pytest.CaptureFixture[str]) -> None:
    assert [line for line in said(script, capsys) if "count of samples" in line] == []


def test_by_the_session() -> None:
    expected = trained(by_the_session)
    for values in on_ranks(lambda: trained(by_the_session), 1, GROWS_AND_SHRINKS):
        torch.testing.assert_close(values, expected, rtol=1e-12, atol=1e-12)


def test_samples_of_all_ranks_in_the_steps() -> None:
    """Also between the steps of several optimizers, and in a step that runs again."""

    def script() -> list[int]:
        parts = {name: fresh(mlp) for name in "ab"}
        optimizers = {name: torch.optim.SGD(one.parameters(), lr=0.01) for name, one in parts.items()}
        ours = session(parts, optimizers)
        loader = ours.loader(DATA, global_batch_size=BATCH)
        counts = []
        for _ in ours.epochs(2):
            for x, y in loader:
                counts.append(ours.samples - 22 * (ours.steps // 6) - BATCH * (ours.steps % 6))
                for name, model in parts.items():
                    optimizers[name].zero_grad()
                    loss = mse_loss(model(x), y)
                    loss.backward()
                    ours.step(loss, name)
                    counts.append(ours.samples - 22 * (ours.steps // 6) - BATCH * (ours.steps % 6))
        return [*counts, ours.samples - 44]

    assert set(script()) == {0}
    for counts in on_ranks(script, 1, GROWS_AND_SHRINKS):
        assert set(counts) == {0}


def by_the_batch(ours: Any, loader: Any, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for _ in ours.epochs(2):
        for x, y in loader:
            scale = x.shape[0] / BATCH
            for group in optimizer.param_groups:
                group["lr"] = 0.05 * scale
            stepped(ours, optimizer, mse_loss(model(x), y))


def by_the_batch_in_a_function(ours: Any, loader: Any, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    def adjusted(size: int) -> None:
        for group in optimizer.param_groups:
            group["lr"] = 0.05 * (size / BATCH) ** 0.5

    for _ in ours.epochs(2):
        for x, y in loader:
            adjusted(x.size(0))
            stepped(ours, optimizer, mse_loss(model(x), y))


def by_all_ranks(ours: Any, loader: Any, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for _ in ours.epochs(2):
        for x, y in loader:
            for group in optimizer.param_groups:
                group["lr"] = 0.05 * loader.batch_size / BATCH
            stepped(ours, optimizer, mse_loss(model(x), y, reduction="sum") / len(x))


def test_a_rate_by_the_size_of_the_batch(capsys: pytest.CaptureFixture[str]) -> None:
    (line,) = said(by_the_batch, capsys)
    assert "sets its learning rate, or another option, by the size of its batch (scale)" in line
    (line,) = said(by_the_batch_in_a_function, capsys)
    assert "by the size of its batch (size in adjusted())" in line
    assert said(by_all_ranks, capsys) == []
