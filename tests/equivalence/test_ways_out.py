"""What a script does where a variable of its own would not do: it uses the session's numbers, ``session.state``, or
tracks it. It trains as one undisturbed process does.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss
from torch.utils.data import DataLoader, TensorDataset

from pilot.core.errors import PilotError
from tests.equivalence.loops import BATCH, DATA, GROWS_AND_SHRINKS, fresh, mlp, session, train
from tests.equivalence.rows import SAMPLES, on_ranks

X, Y = DATA.tensors


def of_parameters(model: nn.Module) -> list[torch.Tensor]:
    return [p.detach().clone() for p in model.parameters()]


def features(model: nn.Module) -> torch.Tensor:
    with torch.no_grad():
        return torch.cat([model(x) for x, _ in DataLoader(DATA, batch_size=8)])


def with_labels(*, tracked: bool) -> list[torch.Tensor]:
    """Of the model's own."""
    model, labels = fresh(mlp), nn.Module()
    labels.register_buffer("values", torch.zeros_like(Y))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    ours = session(model, optimizer)
    if tracked:
        ours.track("labels", labels)
    loader = ours.loader(TensorDataset(X, torch.arange(SAMPLES)), global_batch_size=BATCH)
    for _ in ours.epochs(2):
        if tracked:
            labels.get_buffer("values").copy_(features(model) + Y)
        else:
            ours.state["labels"] = features(model) + Y
        for x, index in loader:
            optimizer.zero_grad()
            targets = labels.get_buffer("values") if tracked else ours.state["labels"]
            loss = mse_loss(model(x), targets[index])
            loss.backward()
            ours.step(loss)
    return of_parameters(model)


def with_an_anchor(*, tracked: bool) -> list[torch.Tensor]:
    """A proximal term."""
    model = fresh(mlp)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    ours = session(model, optimizer)
    anchor = copy.deepcopy(model).requires_grad_(False)
    if tracked:
        ours.track("anchor", anchor)
    loader = ours.loader(DATA, global_batch_size=BATCH)
    for _ in ours.epochs(2):
        if tracked:
            anchor.load_state_dict(model.state_dict())
        else:
            ours.state["anchor"] = of_parameters(model)
        for x, y in loader:
            optimizer.zero_grad()
            to = list(anchor.parameters()) if tracked else ours.state["anchor"]
            loss = mse_loss(model(x), y) + sum(
                (p - old).square().sum() for p, old in zip(model.parameters(), to, strict=True)
            )
            loss.backward()
            ours.step(loss)
    return of_parameters(model)


@pytest.mark.parametrize("tracked", [False, True])
@pytest.mark.parametrize("script", [with_labels, with_an_anchor])
def test_values_of_an_epoch_that_are_declared(
    script: Callable[..., list[torch.Tensor]], tracked: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    expected = script(tracked=tracked)
    assert capsys.readouterr().err == ""
    for values in on_ranks(lambda: script(tracked=tracked), 1, GROWS_AND_SHRINKS):
        torch.testing.assert_close(values, expected, rtol=1e-12, atol=1e-12)


def lowered(ours: Any, loader: Any, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for _ in ours.epochs(2):
        for number, (x, y) in loader.enumerate():
            stepped(ours, optimizer, mse_loss(model(x), y) / max(0.9**number, 0.5))


def stepped(ours: Any, optimizer: torch.optim.Optimizer, loss: torch.Tensor) -> bool:
    optimizer.zero_grad()
    loss.backward()
    return bool(ours.step(loss))


def by_the_session(ours: Any, loader: Any, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for _ in ours.epochs(2):
        for x, y in loader:
            for group in optimizer.param_groups:
                group["lr"] = 0.05 * min(1, (1 + ours.samples) / 40)
            stepped(ours, optimizer, mse_loss(model(x), y) * min(1.0, 0.1 + ours.samples / 30))


def trained(script: Any) -> list[torch.Tensor]:
    model = fresh(mlp)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    ours = session(model, optimizer)
    script(ours, ours.loader(DATA, global_batch_size=BATCH), model, optimizer)
    return [one.detach().clone() for one in model.parameters()]


@pytest.mark.parametrize("script", [lowered, by_the_session])
def test_by_numbers_of_the_session(script: Any) -> None:
    expected = trained(script)
    for values in on_ranks(lambda: trained(script), 1, GROWS_AND_SHRINKS):
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


class ActNorm(nn.Module):
    """With a shift and a scale that the first batch gives."""

    def __init__(self) -> None:
        super().__init__()
        self.shift, self.scale = nn.Parameter(torch.zeros(3)), nn.Parameter(torch.ones(3))
        self.out = nn.Linear(3, 1)
        self.register_buffer("is_set", torch.tensor(False))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.get_buffer("is_set"):
            self.shift.data.copy_(-x.mean(0))
            self.scale.data.copy_(1 / (x.std(0) + 1e-6))
            self.get_buffer("is_set").fill_(1)
        output: torch.Tensor = self.out((x + self.shift) * self.scale)
        return output


def with_norm(*, before: bool = False) -> list[torch.Tensor]:
    model = fresh(ActNorm)
    if before:
        with torch.no_grad():
            model(DATA.tensors[0])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    ours = session(model, optimizer)
    train(ours, model, optimizer, ours.loader(DATA, global_batch_size=BATCH))
    return of_parameters(model)


def test_a_batch_before_the_session() -> None:
    expected = with_norm(before=True)
    for values in on_ranks(lambda: with_norm(before=True), 2, []):
        torch.testing.assert_close(values, expected, rtol=1e-12, atol=1e-12)


def test_a_norm_that_sets_itself_from_the_first_batch_stops_two_ranks() -> None:
    with pytest.raises(PilotError, match=r"shift \(and 1 more\) has differed"):
        on_ranks(with_norm, 2, [])


@pytest.mark.parametrize(("nodes", "told"), [(1, 0), (2, 2)])
def test_an_epoch_without_a_full_step_is_told_of(nodes: int, told: int, capsys: pytest.CaptureFixture[str]) -> None:
    """With a batch for each node there may be one on one node, and none on two."""

    def script() -> None:
        model = fresh(mlp)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        ours = session(model, optimizer, lr_rule="linear")
        loader = ours.loader(DATA, batch_size=len(DATA) * 2 // 3, drop_last=True)
        for _ in ours.epochs(2):
            for x, y in loader:
                optimizer.zero_grad()
                mse_loss(model(x), y).backward()
                ours.step()

    on_ranks(script, nodes, [])
    assert capsys.readouterr().err.count("has no step, so nothing is trained in it") == told
