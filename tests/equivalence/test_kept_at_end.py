"""A script is told if it keeps at an epoch's end, for its later steps, what it has added up over its own batches; and
what to do instead trains as one undisturbed process.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss
from torch.utils.data import DataLoader, Dataset

from tests.equivalence.loops import BATCH, DATA, GROWS_AND_SHRINKS, fresh, mlp, session
from tests.equivalence.rows import on_ranks

Script = Callable[[Any, Any, nn.Module, Callable[[torch.Tensor], None]], None]


class WithIndices(Dataset[Any]):
    """Its samples have their numbers."""

    def __len__(self) -> int:
        return len(DATA)

    def __getitem__(self, index: int) -> Any:
        return *DATA[index], index


class WithCentre(nn.Module):
    """A model with a buffer."""

    centre: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.inner = fresh(mlp)
        self.means: list[float] = []
        self.mean = self.last = 0.0
        self.register_buffer("centre", torch.zeros(1, dtype=torch.float64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x) - self.centre

    def set_centre(self, value: torch.Tensor) -> None:
        self.centre.copy_(value)

    def note(self, mean: float) -> None:
        """For a report."""
        self.means.append(mean)
        self.last = mean


class Pull(nn.Module):
    """A loss with a centre."""

    centre: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("centre", torch.zeros(1, dtype=torch.float64))

    def forward(self, outputs: torch.Tensor) -> torch.Tensor:
        return (outputs - self.centre).square().mean()

    def move(self, to: torch.Tensor) -> None:
        self.centre = 0.5 * self.centre + 0.5 * to


def zeros(count: int = len(DATA)) -> torch.Tensor:
    return torch.zeros(count, 1, dtype=torch.float64)


def a_table(ours: Any, loader: Any, model: nn.Module, step: Any) -> None:
    ours.state["table"] = zeros()
    for _ in ours.epochs(2):
        outputs = zeros()
        for x, y, i in loader:
            out = model(x)
            outputs[i] = out.detach()
            step(mse_loss(out, y) + mse_loss(out, ours.state["table"][i]))
        ours.state["table"] = 0.5 * ours.state["table"] + 0.5 * outputs


def an_array_by_another_value(ours: Any, loader: Any, model: nn.Module, step: Any) -> None:
    """``z``, which the steps use, comes from ``Z``."""
    ours.state.update(Z=zeros(), z=zeros())
    for _ in ours.epochs(2):
        outputs = np.zeros(len(DATA))
        for x, y, i in loader:
            out = model(x)
            outputs[i.numpy()] = out.detach().numpy()[:, 0]
            step(mse_loss(out, y) + mse_loss(out, ours.state["z"][i]))
        ours.state["Z"] = 0.5 * ours.state["Z"] + torch.from_numpy(outputs)[:, None]
        ours.state["z"] = ours.state["Z"] / 2


def a_dict(ours: Any, loader: Any, model: nn.Module, step: Any) -> None:
    ours.state["last"] = [0.0] * len(DATA)
    for _ in ours.epochs(2):
        found = {}
        for x, y, i in loader:
            out = model(x)
            for key, value in zip(i.tolist(), out.flatten().tolist(), strict=True):
                found[key] = value
            target = torch.tensor([ours.state["last"][key] for key in i.tolist()])[:, None]
            step(mse_loss(out, y) + mse_loss(out, target.double()))
        ours.state["last"] = [found.get(key, 0.0) for key in range(len(DATA))]


def weights_of_losses(ours: Any, loader: Any, model: nn.Module, step: Any) -> None:
    """From the last two epochs' mean losses (dynamic weight averaging), by another name of the list."""
    state = ours.state
    state["means"] = []
    for _ in ours.epochs(2):
        means = state["means"]
        weight = 1.0 if len(means) < 2 else means[-1] / means[-2]
        total, count = 0.0, 0
        for x, y, _i in loader:
            loss = mse_loss(model(x), y)
            step(loss * weight)
            total += loss.item()
            count += 1
        means.append(total / count)


def in_functions(ours: Any, loader: Any, model: nn.Module, step: Any) -> None:
    def epoch() -> torch.Tensor:
        outputs = []
        for x, y, _i in loader:
            out = model(x)
            outputs.append(out.detach())
            step(mse_loss(out, y) + pull(out))
        return torch.cat(outputs).mean()

    def pull(outputs: torch.Tensor) -> torch.Tensor:
        return mse_loss(outputs, ours.state["mean"].expand_as(outputs))

    ours.state["mean"] = torch.zeros((), dtype=torch.float64)
    for _ in ours.epochs(2):
        mean = epoch()
        ours.state["mean"] = mean


def a_buffer(ours: Any, loader: Any, model: Any, step: Any) -> None:
    for _ in ours.epochs(2):
        outputs = []
        for x, y, _i in loader:
            out = model(x)
            outputs.append(out.detach())
            step(mse_loss(out, y))
        model.centre.copy_(torch.cat(outputs).mean())


def a_buffer_by_a_method(ours: Any, loader: Any, model: Any, step: Any) -> None:
    for _ in ours.epochs(2):
        total = zeros(1)
        for x, y, _i in loader:
            out = model(x)
            total.add_(out.detach().sum())
            step(mse_loss(out, y))
        model.set_centre(total[0] / len(DATA))


def a_tracked_object(ours: Any, loader: Any, model: nn.Module, step: Any) -> None:
    pull = Pull()
    ours.track("pull", pull)
    for _ in ours.epochs(2):
        total = torch.zeros(1, dtype=torch.float64)
        for x, y, _i in loader:
            out = model(x)
            total = total + out.detach().sum()
            step(mse_loss(out, y) + pull(out))
        pull.move(total / len(DATA))


def an_attribute(ours: Any, loader: Any, model: nn.Module, step: Any) -> None:
    """Of a tracked module."""
    pull = Pull()
    ours.track("pull", pull)
    for _ in ours.epochs(2):
        outputs = []
        for x, y, _i in loader:
            out = model(x)
            outputs.append(out.detach())
            step(mse_loss(out, y) + pull(out))
        pull.centre = torch.cat(outputs).mean(0)


KEPT = {
    a_table: "session.state['table'] .* (outputs)",
    an_array_by_another_value: "session.state['Z'] .* (outputs)",
    a_dict: "session.state['last'] .* (found)",
    weights_of_losses: "session.state['means'] .* (count, means, total)",
    in_functions: "session.state['mean'] .* (epoch(), mean, outputs in epoch())",
    a_buffer: "model.centre .* (outputs)",
    a_buffer_by_a_method: "model.centre .* (total, value in set_centre())",
    an_attribute: "pull.centre .* (outputs)",
    a_tracked_object: "pull.centre .* (to in move(), total)",
}


def trained(script: Script) -> list[torch.Tensor]:
    model = fresh(WithCentre)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    ours = session(model, optimizer)
    loader = ours.loader(WithIndices(), global_batch_size=BATCH)

    def step(loss: torch.Tensor) -> None:
        optimizer.zero_grad()
        loss.backward()
        ours.step(loss)

    script(ours, loader, model, step)
    return [one.detach().clone() for one in model.state_dict().values()]


def said(script: Script, capsys: pytest.CaptureFixture[str]) -> list[str]:
    trained(script)
    return [line for line in capsys.readouterr().err.splitlines() if line.startswith("pilot: ")]


@pytest.mark.parametrize("script", KEPT)
def test_what_is_kept_at_an_epochs_end(script: Script, capsys: pytest.CaptureFixture[str]) -> None:
    place, names = KEPT[script].split(" .* ")
    (line,) = said(script, capsys)
    assert f"keeps in {place} at an epoch's end, for its steps, comes from its own batches {names}" in line
    assert "session.evaluate (means) or from the whole dataset" in line


class History:
    """Only for a report."""

    def __init__(self) -> None:
        self.means: list[float] = []

    def add(self, mean: float) -> None:
        self.means.append(mean)

    def state_dict(self) -> dict[str, Any]:
        return {"means": self.means}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.means = state["means"]


def optimizer_of(ours: Any) -> Any:
    (optimizer,) = ours._training.steppers.optimizers.values()
    return optimizer


def reports(ours: Any, loader: Any, model: Any, step: Any) -> None:
    history = History()
    ours.track("history", history)
    ours.state.update(history=[], best=1e9, loss=0.0)
    for epoch in ours.epochs(2):
        total, losses, by_sample, logs = 0.0, [], {}, {}
        for group in optimizer_of(ours).param_groups:
            group["lr"] = 0.05
        for x, y, i in loader:
            loss = mse_loss(model(x), y)
            for group in optimizer_of(ours).param_groups:
                group["lr"] *= 0.9
            step(loss)
            logs["loss"] = loss.item()
            total += loss.item()
            losses.append(loss.item())
            by_sample[int(i[0])] = loss.item()
            ours.state["all"] = [*ours.state.get("all", []), loss.item()]
        mean = total / len(losses)
        ours.state["history"].append(mean)
        ours.state["loss"] = mean
        ours.state["hardest"] = max(by_sample.values())
        if mean < ours.state["best"]:
            ours.state["best"] = mean
        history.add(mean)
        model.mean = mean
        logs["measured"] = ours.evaluate(WithIndices(), lambda batch: {"": model(batch[0]).mean()})[""]
        for group in optimizer_of(ours).param_groups:
            group["lr"] *= 0.5 if logs["measured"] > 1e9 else 1.0
        model.note(mean)
        ours.report(best=ours.state["best"], last=ours.state["history"][-1])
        print(epoch, ours.state["loss"], ours.state["hardest"], history.means)


def as_it_is_told(ours: Any, loader: Any, model: Any, step: Any) -> None:
    """Means by an evaluation; what belongs to samples by a pass over all of them."""
    ours.state["table"] = zeros()
    for _ in ours.epochs(2):
        total = 0.0
        for x, y, i in loader:
            out = model(x)
            loss = mse_loss(out, y) + mse_loss(out, ours.state["table"][i])
            total += loss.item()
            step(loss)
        print(total)
        means = ours.evaluate(WithIndices(), lambda batch: {"output": model(batch[0]).mean()})
        table = zeros()
        with torch.no_grad():
            for x, _y, i in DataLoader(WithIndices(), 8):
                table[i] = model(x)
        ours.state["table"] = table
        model.centre.fill_(means["output"])


@pytest.mark.parametrize("script", [reports, as_it_is_told])
def test_reports_and_what_all_ranks_compute_are_not_told_of(script: Script, capsys: pytest.CaptureFixture[str]) -> None:
    assert [line for line in said(script, capsys) if "own batches" in line] == []


def test_as_it_is_told() -> None:
    expected = trained(as_it_is_told)
    for values in on_ranks(lambda: trained(as_it_is_told), 1, GROWS_AND_SHRINKS):
        torch.testing.assert_close(values, expected, rtol=1e-12, atol=1e-12)
