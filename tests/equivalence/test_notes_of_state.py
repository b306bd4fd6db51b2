"""What a script is told of what it keeps in ``session.state``; see :mod:`tests.equivalence.test_notes`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import mse_loss

from tests.equivalence.keeping import Pool, said
from tests.equivalence.loops import BATCH, DATA, fresh, mlp, session
from tests.equivalence.rows import on_ranks
from tests.unit.train.storm import End


@pytest.mark.parametrize(
    ("made", "change"),
    [
        (lambda: torch.zeros(2), lambda kept: kept.add_(1)),
        (lambda: np.zeros(2), lambda kept: kept.__iadd__(1)),
    ],
)
@pytest.mark.parametrize("where", ["kept", "pool.kept"])
def test_a_value_of_the_state_that_is_changed_through_a_variable(
    made: Callable[[], Any], change: Callable[[Any], Any], where: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def script(ours: Any, loader: Any, step: Any) -> None:
        pool = Pool()
        if where == "kept":
            kept = ours.state.setdefault("its", made())
        else:
            pool.kept = ours.state.setdefault("its", made())
        for _ in ours.epochs(2):
            for x, y in loader:
                step(x, y)
                change(kept if where == "kept" else pool.kept)

    (line,) = said(script, capsys)
    assert f"changes session.state['its'] by another name, which it has from before the loop ({where})" in line


@pytest.mark.parametrize("in_each_batch", [False, True])
def test_a_value_of_the_state_that_is_changed_through_an_epochs_variable(
    in_each_batch: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """A variable that each batch takes from the state has what is there."""

    def by_epoch(ours: Any, loader: Any, step: Any) -> None:
        ours.state["its"] = np.zeros(2)
        for _ in ours.epochs(2):
            kept = ours.state["its"]
            for x, y in loader:
                step(x, y)
                kept[0] += 1

    def by_batch(ours: Any, loader: Any, step: Any) -> None:
        ours.state["its"] = np.zeros(2)
        for _ in ours.epochs(2):
            for x, y in loader:
                kept = ours.state["its"]
                step(x, y)
                kept[0] += 1

    lines = said(by_batch if in_each_batch else by_epoch, capsys)
    expected = "changes session.state['its'] by another name, which it has from an epoch's beginning (kept)"
    assert [expected in line for line in lines] == [True] * (not in_each_batch)


def test_not_a_variable_that_each_turn_takes_from_the_state(capsys: pytest.CaptureFixture[str]) -> None:
    def script(ours: Any, loader: Any, step: Any) -> None:
        kept = ours.state["its"] = torch.zeros(2)
        for _ in ours.epochs(3):
            kept = ours.state["its"]
            for x, y in loader:
                step(x, y)
            ours.state["its"] = kept = 0.9 * kept + 1

    assert said(script, capsys) == []


def test_values_of_the_state_that_are_changed_there_are_not_told_of(capsys: pytest.CaptureFixture[str]) -> None:
    def script(ours: Any, loader: Any, step: Any) -> None:
        state, fixed = ours.state, ours.state.setdefault("fixed", [1.0])
        state["losses"], best = [], None
        for epoch in ours.epochs(2):
            for x, y in loader:
                step(x, y, sum(fixed))
                state["losses"].append(epoch)
            best = state["best"] = [torch.ones(epoch + 1)]
        assert best

    assert said(script, capsys) == []


@pytest.mark.parametrize("kind", [list, dict, set])
@pytest.mark.parametrize("by_name", [False, True])
def test_a_list_of_the_state_stays_the_same(kind: type, by_name: bool, capsys: pytest.CaptureFixture[str]) -> None:
    """Also where a node joins in the midst of an evaluation whose result is added to it."""

    def script(made: Callable[..., Any]) -> Any:
        model = fresh(mlp)
        ours = made(model, torch.optim.SGD(model.parameters(), lr=0.05))
        loader = ours.loader(DATA, global_batch_size=BATCH)
        kept = ours.state.setdefault("its", kind())
        for epoch in ours.epochs(3):
            for x, y in loader:
                model.zero_grad()
                loss = mse_loss(model(x), y)
                loss.backward()
                ours.step(loss)
            its = kept if by_name else ours.state["its"]
            measure = ours.evaluate(DATA, lambda batch: {"loss": mse_loss(model(batch[0]), batch[1])})["loss"]
            add(its, epoch, measure)
        return ours.state["its"]

    expected = script(session)
    assert len(expected) == 3
    assert capsys.readouterr().err == ""
    for operation in range(4, 14):
        for its in on_ranks(lambda: script(session), 1, [End(operation, (True,), (False,), 1)]):
            assert len(its) == 3, operation


def add(its: Any, epoch: int, measure: float) -> None:
    if isinstance(its, dict):
        its[epoch] = measure
    elif isinstance(its, set):
        its.add((epoch, measure))
    else:
        its.append(measure)
