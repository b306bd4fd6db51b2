"""A script is told, also alone, of what it keeps of its own batches in ``session.state`` and in tracked objects; not of
what is the same on all ranks there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import networkx
import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss

from tests.equivalence.loops import BATCH, DATA, fresh, mlp, session
from tests.equivalence.rows import on_ranks


@dataclass
class Run:
    """``its``: a tracked object."""

    ours: Any
    its: Any
    model: nn.Module
    graph: networkx.Graph


Loss = Callable[[Run, torch.Tensor, torch.Tensor], torch.Tensor]


def zeros(size: int) -> torch.Tensor:
    return torch.zeros(size, dtype=torch.float64)


class Saved:
    """All of its attributes are its state."""

    def state_dict(self) -> dict[str, Any]:
        return dict(vars(self))

    def load_state_dict(self, state: dict[str, Any]) -> None:
        vars(self).update(state)


class Normalizer(Saved):
    def __init__(self) -> None:
        self.mean, self.count = zeros(3), 1e-4

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        self.mean = self.mean + (x.mean(0) - self.mean) * len(x) / (self.count + len(x))
        self.count += len(x)
        return x - self.mean


class Controller(Saved):
    """Weighs a loss by the integral of it."""

    def __init__(self) -> None:
        self.integral = 0.0

    def weight(self, error: float) -> float:
        self.integral += 0.1 * error
        return 1 / (1 + self.integral)


class Resampler(Saved):
    """As of diffusion models: a kind of sample with larger losses counts less."""

    def __init__(self) -> None:
        self.history = 1 + zeros(4)

    def update(self, kind: int, loss: float) -> None:
        self.history[kind] = 0.9 * self.history[kind] + 0.1 * loss


class Prototypes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("means", zeros(1))

    def update(self, features: torch.Tensor) -> None:
        self.means.mul_(0.9).add_(0.1 * features.detach().mean(0))


def normalized(run: Run, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return mse_loss(run.model(run.its(x)), y)


def controlled(run: Run, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    loss = mse_loss(run.model(x), y)
    return loss * run.its.weight(loss.item())


def resampled(run: Run, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    kind = int(10 * x.sum().abs()) % 4
    loss = mse_loss(run.model(x), y)
    weight = 1 / run.its.history[kind]
    run.its.update(kind, loss.item())
    return loss * weight


def pulled(run: Run, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = run.model(x)
    loss = mse_loss(out, y) + (out - run.its.means).square().mean()
    run.its.means.mul_(0.9).add_(0.1 * out.detach().mean(0))
    return loss


def pulled_by_a_method(run: Run, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = run.model(x)
    loss = mse_loss(out, y) + (out - run.its.means).square().mean()
    run.its.update(out)
    return loss


def by_a_mean(run: Run, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    run.ours.state["mean"] = 0.9 * run.ours.state.get("mean", zeros(3)) + 0.1 * x.mean(0)
    return mse_loss(run.model(x - run.ours.state["mean"]), y)


def by_a_mean_in_place(run: Run, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    run.ours.state.setdefault("mean", zeros(3))
    run.ours.state["mean"].lerp_(x.mean(0), 0.1)
    return mse_loss(run.model(x - run.ours.state["mean"]), y)


def by_the_first_loss(run: Run, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    loss = mse_loss(run.model(x), y)
    return loss / run.ours.state.setdefault("first", loss.item())


def by_an_update(run: Run, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    mean = run.ours.state.get("mean", zeros(3))
    run.ours.state.update(mean=0.9 * mean + 0.1 * x.mean(0))
    return mse_loss(run.model(x - run.ours.state["mean"]), y)


def moved(centre: torch.Tensor, out: torch.Tensor) -> None:
    centre.mul_(0.9).add_(0.1 * out.detach().mean(0))


def by_a_mean_in_a_function(run: Run, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    run.ours.state.setdefault("mean", zeros(1))
    out = run.model(x)
    loss = mse_loss(out, y) + (out - run.ours.state["mean"]).square().mean()
    moved(run.ours.state["mean"], out)
    return loss


def by_a_graph(run: Run, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """An object of an installed package."""
    run.graph.update(edges=[(0, int(10 * one)) for one in y.flatten().tolist()])
    return mse_loss(run.model(x), y) / (1 + run.graph.number_of_edges())


def by_a_graph_of_its_turn(run: Run, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    graph = networkx.Graph()
    graph.update(edges=[(0, int(10 * one)) for one in y.flatten().tolist()])
    return mse_loss(run.model(x), y) / (1 + graph.number_of_edges())


OWN: dict[str, tuple[Loss, Callable[[], Any], str]] = {
    "a mean of inputs": (normalized, Normalizer, "its.mean"),
    "an integral of losses": (controlled, Controller, "its.integral"),
    "a history of losses": (resampled, Resampler, "its.history"),
    "a buffer of features": (pulled, Prototypes, "its.means"),
    "a buffer, by the module's method": (pulled_by_a_method, Prototypes, "its.means"),
    "an installed package's object": (by_a_graph, Saved, "run.graph"),
    "in the state": (by_a_mean, Saved, "session.state['mean']"),
    "in the state, in place": (by_a_mean_in_place, Saved, "session.state['mean']"),
    "in the state, by setdefault": (by_the_first_loss, Saved, "session.state['first']"),
    "in the state, by update": (by_an_update, Saved, "session.state['mean']"),
    "in the state, by a function's own name": (by_a_mean_in_a_function, Saved, "session.state['mean']"),
}


def trained(loss_of: Loss, kind: Callable[[], Any]) -> None:
    model, its = fresh(mlp), kind()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    ours = session(model, optimizer)
    ours.track("its", its)
    loader, run = ours.loader(DATA, global_batch_size=BATCH), Run(ours, its, model, networkx.Graph())
    for _ in ours.epochs(2):
        for x, y in loader:
            optimizer.zero_grad()
            loss = loss_of(run, x, y)
            loss.backward()
            ours.step(loss)


class Stepping(nn.Module):
    """As trainers that are modules: a method computes the loss, and keeps what it needs."""

    centre: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.layers, self.scale = fresh(mlp), 1.0
        self.register_buffer("centre", zeros(1))

    def by_a_buffer(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        out = self.layers(x)
        loss = mse_loss(out, y) + (out - self.centre).square().mean()
        self.centre.mul_(0.9).add_(0.1 * out.detach().mean(0))
        return loss

    def by_a_number(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss = mse_loss(self.layers(x), y) * self.scale
        self.scale = 0.9 * self.scale + 0.1 * loss.item()
        return loss

    def by_the_step(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        self.scale *= 0.99
        return mse_loss(self.layers(x), y) * self.scale


def by_a_buffer() -> None:
    model, optimizer, ours, loader = stepping()
    for _ in ours.epochs(2):
        for x, y in loader:
            optimizer.zero_grad()
            loss = model.by_a_buffer(x, y)
            loss.backward()
            ours.step(loss)


def by_a_number() -> None:
    model, optimizer, ours, loader = stepping()
    for _ in ours.epochs(2):
        for x, y in loader:
            optimizer.zero_grad()
            loss = model.by_a_number(x, y)
            loss.backward()
            ours.step(loss)


def by_the_step_in_the_model() -> None:
    model, optimizer, ours, loader = stepping()
    for _ in ours.epochs(2):
        for x, y in loader:
            optimizer.zero_grad()
            loss = model.by_the_step(x, y)
            loss.backward()
            ours.step(loss)


def stepping() -> tuple[Stepping, torch.optim.Optimizer, Any, Any]:
    model = Stepping()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    ours = session(model, optimizer)
    return model, optimizer, ours, ours.loader(DATA, global_batch_size=BATCH)


@pytest.mark.parametrize(("script", "name"), [(by_a_buffer, "centre"), (by_a_number, "scale")])
def test_what_the_model_keeps(script: Callable[[], None], name: str, capsys: pytest.CaptureFixture[str]) -> None:
    script()
    lines = said(capsys)
    assert sum(f"comes from its own batches (the model's {name})" in line for line in lines) == 1, lines


def test_what_the_model_keeps_of_steps(capsys: pytest.CaptureFixture[str]) -> None:
    by_the_step_in_the_model()
    assert not [line for line in said(capsys) if "batch" in line]


def said(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return [line for line in capsys.readouterr().err.splitlines() if line.startswith("pilot: ")]


@pytest.mark.parametrize("case", OWN)
def test_what_comes_from_own_batches(case: str, capsys: pytest.CaptureFixture[str]) -> None:
    loss_of, kind, name = OWN[case]
    trained(loss_of, kind)
    lines = said(capsys)
    assert sum(f"the script keeps what comes from its own batches ({name})" in line for line in lines) == 1, lines


class Average(Saved):
    """Of the model's parameters."""

    def __init__(self) -> None:
        self.values: list[torch.Tensor] = []

    def update(self, model: nn.Module) -> None:
        with torch.no_grad():
            now = [one.detach().clone() for one in model.parameters()]
            self.values = [0.9 * one + 0.1 * other for one, other in zip(self.values, now, strict=True)] or now


class Warmup(Saved):
    def __init__(self) -> None:
        self.steps = 0

    def weight(self) -> float:
        self.steps += 1
        return min(1.0, self.steps / 5)


def with_an_average(run: Run, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    if not run.its.values:
        run.its.values = [one.detach().clone() for one in run.model.parameters()]
    run.its.update(run.model)
    pull = sum((one - other).square().sum() for one, other in zip(run.model.parameters(), run.its.values, strict=True))
    return mse_loss(run.model(x), y) + 0.1 * pull


def warmed_up(run: Run, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    run.ours.state["weight"] = run.its.weight()
    return mse_loss(run.model(x), y) * run.ours.state["weight"]


def by_the_step(run: Run, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    run.ours.state["scale"] = run.ours.state.get("scale", 1 + zeros(3)) * 0.99
    x = x * run.ours.state["scale"]
    return mse_loss(run.model(x), y)


ALIKE: dict[str, tuple[Loss, Callable[[], Any]]] = {
    "an average of parameters": (with_an_average, Average),
    "a count of steps": (warmed_up, Warmup),
    "a factor": (by_the_step, Saved),
    "a graph of its turn": (by_a_graph_of_its_turn, Saved),
}


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("case", ALIKE)
def test_what_is_the_same_on_all_ranks(case: str, ranks: int, capsys: pytest.CaptureFixture[str]) -> None:
    if ranks == 1:
        trained(*ALIKE[case])
    else:
        on_ranks(lambda: trained(*ALIKE[case]), ranks, [])
    assert not [line for line in said(capsys) if "batch" in line]
