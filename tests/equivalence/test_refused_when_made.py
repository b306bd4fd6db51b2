"""What a session refuses when it is created, apart from the rows of the table."""

from __future__ import annotations

import importlib

import pytest
import torch
from torch import nn

import pilot.train
from pilot.core.errors import UserError

CLAIM = importlib.import_module("pilot.train.course")._claim  # before the tests' fixture replaces it


def test_a_process_has_one_session(monkeypatch: pytest.MonkeyPatch) -> None:
    group = importlib.import_module("pilot.train.course")
    monkeypatch.setattr(group, "_claim", CLAIM)
    monkeypatch.setattr(group, "_claimed", [])
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    pilot.train.session(model, optimizer)
    with pytest.raises(UserError, match="already has a session"):
        pilot.train.session(model, optimizer)


def test_a_frozen_part_may_be_in_the_optimizer_or_not() -> None:
    model = nn.Sequential(nn.Linear(2, 2).requires_grad_(False), nn.Linear(2, 1))
    for trained in (model.parameters(), model[1].parameters()):
        pilot.train.session(model, torch.optim.SGD(trained, lr=0.1))
