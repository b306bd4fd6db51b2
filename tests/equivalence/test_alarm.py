"""Ranks that no longer train the same are stopped, with the tensor's name and the steps."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import pilot.train
from pilot.core.errors import PilotError
from pilot.train import alarm
from pilot.train.alarm import Alarm
from tests.equivalence.rows import on_ranks


def script(edited: int | None) -> list[float]:
    """Two ranks; one of them sets a parameter after step ``edited``."""
    model = nn.Sequential(nn.Linear(2, 2, dtype=torch.float64), nn.Linear(2, 1, dtype=torch.float64))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    session = pilot.train.session(model, optimizer)
    loader = session.loader(TensorDataset(torch.ones(48, 2, dtype=torch.float64)), global_batch_size=4)
    for _ in session.epochs(1):
        for (x,) in loader:
            optimizer.zero_grad()
            model(x).square().mean().backward()
            session.step()
            if session.steps == edited and session.rank == 1:
                model[1].weight.data += 1e-9
    return torch.cat([p.detach().flatten() for p in model.parameters()]).tolist()


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alarm, "EVERY_STEPS", 4)


def test_the_first_tensor_that_differs_is_named_with_the_steps_between_which_it_happened() -> None:
    with pytest.raises(PilotError, match=r"1\.weight differs since a step between 4 and 8"):
        on_ranks(lambda: script(edited=6), 2, [])


def test_equal_ranks_train_to_the_end() -> None:
    first, second = on_ranks(lambda: script(edited=None), 2, [])
    assert first == second


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_one_bit_anywhere_changes_the_checksum(dtype: torch.dtype) -> None:
    tensors: list[Any] = [torch.ones(3, 2, dtype=dtype), torch.ones(2, 3, dtype=dtype).t()]
    named = list(zip("ab", tensors, strict=True))
    before = Alarm(named).checksum(0, 2)
    tensors[1][0, 1] = torch.nextafter(tensors[1][0, 1], torch.tensor(2.0, dtype=dtype))
    assert 1 <= before <= 65_521
    assert Alarm(named).checksum(0, 2) != before
    assert (Alarm(named).checksum(1, 2), Alarm(named).checksum(0, 1)) == (0, 0)


def test_changes_that_cancel_out_change_the_checksum() -> None:
    tensor = torch.tensor([1.25, -1.25], dtype=torch.float64)
    before = Alarm([("a", tensor)]).checksum(0, 2)
    tensor += 2.0**-30  # the bits of one number rise by what those of the other fall
    assert Alarm([("a", tensor)]).checksum(0, 2) != before
