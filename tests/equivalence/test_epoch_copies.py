"""A script is told that it copies the parameters at an epoch's beginning, when a node that joins copies others; and
what to do instead trains as one undisturbed process.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss

from tests.equivalence.loops import BATCH, DATA, GROWS_AND_SHRINKS, fresh, mlp, session
from tests.equivalence.rows import on_ranks

Copied = Callable[[nn.Module], Any]


def of_parameters(model: nn.Module) -> list[torch.Tensor]:
    return [p.detach().clone() for p in model.parameters()]


def by_name(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in model.named_parameters()}


class Averages:
    """Keeps what it is given."""

    def __init__(self, model: nn.Module) -> None:
        self.values = of_parameters(model)


def said(
    capsys: pytest.CaptureFixture[str],
    *,
    at_the_beginning: Copied = lambda _: None,
    in_a_step: Copied = lambda _: None,
    at_the_end: Copied = lambda _: None,
    before: Copied = lambda _: None,
    restores: bool = False,
) -> str:
    model = fresh(mlp)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    _first = before(model)
    ours = session(model, optimizer)
    if restores:
        ours.on_restore(lambda: None)
    loader = ours.loader(DATA, global_batch_size=BATCH)
    for _ in ours.epochs(3):
        anchor = at_the_beginning(model)
        for x, y in loader:
            _last = in_a_step(model)
            optimizer.zero_grad()
            loss = mse_loss(model(x), y)
            loss.backward()
            ours.step(loss)
        _best = at_the_end(model)
    del anchor
    return capsys.readouterr().err


@pytest.mark.parametrize("copied", [copy.deepcopy, of_parameters, by_name, Averages])
def test_copies_at_an_epochs_beginning(copied: Copied, capsys: pytest.CaptureFixture[str]) -> None:
    (line,) = said(capsys, at_the_beginning=copied).splitlines()
    assert "copies the model's parameters at an epoch's beginning (anchor" in line
    assert said(capsys, at_the_beginning=copied, restores=True) == ""


@pytest.mark.parametrize("place", ["before", "in_a_step", "at_the_end"])
def test_other_copies_are_not_told_of_so(place: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert "epoch's beginning" not in said(capsys, **{place: copy.deepcopy})


@pytest.mark.parametrize("like", [torch.zeros_like, torch.ones_like])
def test_constants_are_no_copies(like: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert said(capsys, at_the_beginning=lambda model: [like(p) for p in model.parameters()]) == ""


@pytest.mark.parametrize("copies_anew", [True, False])
def test_parameters_that_are_set_back_to_a_copy_from_before(
    copies_anew: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """As a lottery ticket's are."""
    kept = list[dict[str, Any]]()

    def before(model: nn.Module) -> None:
        kept.append(copy.deepcopy(model.state_dict()))

    def set_back(model: nn.Module) -> Any:
        for value, p in zip(kept[0].values(), model.parameters(), strict=True):
            if copies_anew:
                value.data.copy_(p.data)
        model.load_state_dict(kept[0])
        return kept[0]

    lines = said(capsys, before=before, at_the_beginning=set_back).splitlines()
    assert any("copies the model's parameters" in line for line in lines) == copies_anew


@pytest.mark.parametrize("moves", [True, False])
def test_copies_of_an_average_that_is_tracked(moves: bool, capsys: pytest.CaptureFixture[str]) -> None:
    """And not of a teacher that is fixed."""
    model, tracked = fresh(mlp), fresh(mlp)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    ours = session(model, optimizer)
    ours.track("tracked", tracked)
    loader = ours.loader(DATA, global_batch_size=BATCH)
    for _ in ours.epochs(3):
        teacher = copy.deepcopy(tracked)
        for x, y in loader:
            optimizer.zero_grad()
            loss = mse_loss(model(x), y) + mse_loss(model(x), teacher(x).detach())
            loss.backward()
            if ours.step(loss) and moves:
                average(tracked, model)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == moves
    assert all("copies the model's parameters at an epoch's beginning (teacher" in line for line in lines)


def average(moved: nn.Module, model: nn.Module) -> None:
    with torch.no_grad():
        for one, p in zip(moved.parameters(), model.parameters(), strict=True):
            one.lerp_(p, 0.5)


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
def test_an_anchor_in_the_state(tracked: bool, capsys: pytest.CaptureFixture[str]) -> None:
    expected = with_an_anchor(tracked=tracked)
    assert capsys.readouterr().err == ""
    for values in on_ranks(lambda: with_an_anchor(tracked=tracked), 1, GROWS_AND_SHRINKS):
        torch.testing.assert_close(values, expected, rtol=1e-12, atol=1e-12)


def test_one_line_tells_of_copies_that_a_script_makes_by_itself(capsys: pytest.CaptureFixture[str]) -> None:
    model = fresh(mlp)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    ours = session(model, optimizer)
    loader = ours.loader(DATA, global_batch_size=BATCH)
    for _ in ours.epochs(3):
        anchor = [p.detach().clone() for p in model.parameters()]
        for x, y in loader:
            optimizer.zero_grad()
            near = sum((p - old).square().sum() for p, old in zip(model.parameters(), anchor, strict=True))
            loss = mse_loss(model(x), y) + near
            loss.backward()
            ours.step(loss)
    (line,) = capsys.readouterr().err.splitlines()
    assert "reads the model's parameters at an epoch's beginning, and computes there (anchor)" in line
