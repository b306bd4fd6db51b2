"""Refused when the session is made, also where the script runs alone: one line that says what, where and what to do."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import pilot.train
from pilot.core.errors import UserError

CLAIM = importlib.import_module("pilot.train.group")._claim  # before the tests' fixture replaces it

Parts = tuple[nn.Module, torch.optim.Optimizer]


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1)


def more_in_the_optimizer() -> Parts:
    model, other = nn.Linear(2, 1), nn.Linear(3, 1)
    return model, sgd([*model.parameters(), *other.parameters()])


def more_in_the_model() -> Parts:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    return model, sgd(model[0].parameters())


def lbfgs() -> Parts:
    model = nn.Linear(2, 1)
    return model, torch.optim.LBFGS(model.parameters())


class NeedsClosure(torch.optim.SGD):
    def step(self, closure: Callable[[], float]) -> float:
        return closure()


def own_closure() -> Parts:
    model = nn.Linear(2, 1)
    return model, NeedsClosure(model.parameters(), lr=0.1)


def lazy() -> Parts:
    model = nn.Sequential(nn.LazyLinear(1))
    return model, sgd(model.parameters())


def lazy_buffer() -> Parts:
    model = nn.Sequential(nn.Linear(2, 2), nn.LazyBatchNorm1d(affine=False))
    return model, sgd(model.parameters())


def meta() -> Parts:
    model = nn.Linear(2, 1, device="meta")
    return model, sgd(model.parameters())


def quantized() -> Parts:
    model = nn.Linear(2, 1)
    model.register_buffer("table", torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8))
    return model, sgd(model.parameters())


def sparse_layout() -> Parts:
    model = nn.Linear(2, 1)
    model.register_buffer("mask", torch.eye(2).to_sparse())
    return model, sgd(model.parameters())


def sparse_embedding() -> Parts:
    model = nn.Sequential(nn.Embedding(4, 2, sparse=True))
    return model, sgd(model.parameters())


def sparse_adam() -> Parts:
    model = nn.Linear(2, 1)
    return model, torch.optim.SparseAdam(list(model.parameters()))


def complex_numbers() -> Parts:
    model = nn.Linear(2, 1, dtype=torch.complex64)
    return model, sgd(model.parameters())


class Extra(nn.Linear):
    def get_extra_state(self) -> Any:
        return {"calls": 0}

    def set_extra_state(self, _state: Any) -> None:
        """Nothing."""


def extra_state() -> Parts:
    model = nn.Sequential(Extra(2, 1))
    return model, sgd(model.parameters())


ROWS = [
    (more_in_the_optimizer, r"number 2 of its group 0, of shape \[1, 3\]"),
    (more_in_the_model, "parameter 1.weight requires a gradient"),
    (lbfgs, "LBFGS.step needs a closure"),
    (own_closure, "NeedsClosure.step needs a closure"),
    (lazy, "0.weight has no shape yet"),
    (lazy_buffer, "1.running_mean has no shape yet"),
    (meta, "weight is on the meta device"),
    (quantized, "buffer table is quantized"),
    (sparse_layout, "buffer mask is of layout"),
    (sparse_embedding, "module 0 makes sparse gradients"),
    (sparse_adam, "SparseAdam"),
    (complex_numbers, "weight is of torch.complex64"),
    (extra_state, "module 0 has a get_extra_state"),
]


@pytest.mark.parametrize(("made", "line"), ROWS, ids=[made.__name__ for made, _ in ROWS])
def test_a_session_that_would_train_wrongly_is_refused(made: Callable[[], Parts], line: str) -> None:
    with pytest.raises(UserError, match=line) as refused:
        pilot.train.session(*made())
    assert "\n" not in str(refused.value)


def test_what_a_scheduler_counts_must_be_said() -> None:
    model = nn.Linear(2, 1)
    optimizer = sgd(model.parameters())
    with pytest.raises(UserError, match=r"schedule='step'.*schedule='epoch'"):
        pilot.train.session(model, optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 30))


def test_a_process_has_one_session(monkeypatch: pytest.MonkeyPatch) -> None:
    group = importlib.import_module("pilot.train.group")
    monkeypatch.setattr(group, "_claim", CLAIM)
    monkeypatch.setattr(group, "_claimed", [])
    model = nn.Linear(2, 1)
    pilot.train.session(model, sgd(model.parameters()))
    with pytest.raises(UserError, match="has a session already"):
        pilot.train.session(model, sgd(model.parameters()))


def test_a_frozen_part_may_be_in_the_optimizer_or_not() -> None:
    model = nn.Sequential(nn.Linear(2, 2).requires_grad_(False), nn.Linear(2, 1))
    for trained in (model.parameters(), model[1].parameters()):
        pilot.train.session(model, sgd(trained))
