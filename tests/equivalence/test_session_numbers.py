"""Scripts that use the session's numbers and ``session.state``, where a variable of their own would not do: they train
as one undisturbed process does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss
from torch.utils.data import TensorDataset

from tests.equivalence.loops import BATCH, DATA, GROWS_AND_SHRINKS, an_epoch, fresh, mlp, session, tensors, trained
from tests.equivalence.rows import SAMPLES, Result, assert_agree, on_ranks

X, Y = DATA.tensors


def by_labels_of_its_own() -> Result:
    """Of the model at an epoch's beginning, which only ``session.state`` still has in the middle of it."""
    model = fresh(mlp)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    ours = session(model, optimizer)
    loader = ours.loader(TensorDataset(X, torch.arange(SAMPLES)), global_batch_size=BATCH)
    for _ in ours.epochs(2):
        with torch.no_grad():
            ours.state["labels"] = model(X) + Y
        for x, index in loader:
            optimizer.zero_grad()
            loss = mse_loss(model(x), ours.state["labels"][index])
            loss.backward()
            ours.step(loss)
    return tensors(model=model)


def by_samples() -> Result:
    def body(ours: Any, model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor, y: torch.Tensor) -> None:
        for group in optimizer.param_groups:
            group["lr"] = 0.05 * min(1, (1 + ours.samples) / 40)
        optimizer.zero_grad()
        loss = mse_loss(model(x), y) * min(1.0, 0.1 + ours.samples / 30)
        loss.backward()
        ours.step(loss)

    model = fresh(mlp)
    return trained(session, model, torch.optim.SGD(model.parameters(), lr=0.05), body=body)


@pytest.mark.parametrize("script", [by_labels_of_its_own, by_samples])
def test_equal_to_one_process(script: Callable[[], Result]) -> None:
    assert_agree(on_ranks(script, 1, GROWS_AND_SHRINKS), script())


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


@pytest.mark.parametrize(("nodes", "told"), [(1, 0), (2, 2)])
def test_an_epoch_without_a_full_step_is_told_of(nodes: int, told: int, capsys: pytest.CaptureFixture[str]) -> None:
    """With a batch for each node there may be one on one node, and none on two."""

    def script() -> None:
        model = fresh(mlp)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        ours = session(model, optimizer, lr_rule="linear")
        loader = ours.loader(DATA, batch_size=len(DATA) * 2 // 3, drop_last=True)
        for _ in ours.epochs(2):
            an_epoch(ours, loader, model, optimizer)

    on_ranks(script, nodes, [])
    assert capsys.readouterr().err.count("has no step, so nothing is trained in it") == told
