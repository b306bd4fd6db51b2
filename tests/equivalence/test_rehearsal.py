"""A node that joins computes what another one computes; if it does not, it leaves, whatever the reason."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss
from torch.utils.data import IterableDataset, TensorDataset

import pilot.train
from pilot.core.errors import JoinedOtherwise
from pilot.protocol.run_identity import ACCEPT
from pilot.train.check.group import ScenarioGroup
from tests.equivalence.hidden import (
    SCRIPTS,
    Script,
    X,
    Y,
    drawn,
    draws_a_constant,
    model,
    registers_a_hook,
    steps_two_by_name,
    switches_its_loss,
    train,
)
from tests.equivalence.loops import a_step, an_epoch
from tests.equivalence.rows import on_ranks
from tests.unit.train.storm import End

JOINS = [End(9, (True,), (False,), 1, at="step")]
"""One rank; a second comes in the third of four epochs."""
SAID = "computes another gradient of"


def said(script: Callable[[], Any], count: int = 1, ends: Sequence[End] = JOINS) -> str:
    """With what words one that joins ends; "": none does."""
    try:
        on_ranks(script, count, ends)
    except JoinedOtherwise as error:
        return str(error)
    return ""


@pytest.mark.parametrize("options", [{"global_batch_size": 4}, {"batch_size": 4}], ids=["fixed", "per node"])
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.__name__)
def test_one_on_which_something_is_not_the_same_ends(script: Script, options: dict[str, int]) -> None:
    script(options)
    assert "Possible causes: a value that the script switches" in said(lambda: script(options))


def test_the_parameter_whose_gradients_differ_most_is_named() -> None:
    assert f"{SAID} 0.weight than rank" in said(lambda: registers_a_hook({"global_batch_size": 4}))


def test_what_the_user_accepts_is_only_remarked(monkeypatch: pytest.MonkeyPatch) -> None:
    remarks: list[str] = []
    monkeypatch.setenv(ACCEPT, "gradients")
    monkeypatch.setattr(ScenarioGroup, "remark", lambda _, text: remarks.append(text))
    on_ranks(lambda: draws_a_constant({"global_batch_size": 4}), 1, JOINS)
    assert len(remarks) == 2
    assert remarks[0] == remarks[1]
    assert re.fullmatch(rf"rank \d {SAID} .*parameters \(accepted\)", remarks[0])


@pytest.mark.parametrize("way", ["joins", "joins twice", "is replaced", "begin together"])
@pytest.mark.parametrize("micro", [None, 1])
@pytest.mark.parametrize("size", ["global_batch_size", "batch_size"])
def test_one_on_which_all_is_the_same_stays(way: str, micro: int | None, size: str) -> None:
    """Dropout draws as on the rank that is repeated."""

    def script() -> None:
        net = nn.Sequential(model(), nn.Dropout(0.5), nn.Linear(1, 1).double())
        train(net, {size: 6, "micro_batch_size": micro and 3})

    ends = {
        "joins": JOINS,
        "joins twice": [*JOINS, End(8, (True,), (False,), 2)],
        "is replaced": [End(9, (True,), (False, True), 1), End(6, (False,), (True,), 1)],
        "begin together": [],
    }
    on_ranks(script, 1 + (way in ("is replaced", "begin together")), ends[way])


def test_all_that_join_at_once_are_compared() -> None:
    """Each ends by itself."""
    ends = [End(5, (True,), (False,), 3, at="step")]
    assert SAID in said(lambda: draws_a_constant({"batch_size": 2}), 1, ends)


class Lines(IterableDataset[Any]):
    """The same samples, one after the other."""

    def __init__(self, by: float) -> None:
        self._by = by

    def __iter__(self) -> Iterator[Any]:
        yield from ((x * self._by, y) for x, y in zip(X, Y, strict=True))


@pytest.mark.parametrize("others", [False, True])
@pytest.mark.parametrize("size", ["global_batch_size", "batch_size"])
def test_samples_of_a_stream_are_repeated(size: str, others: bool) -> None:
    def script() -> None:
        net = model()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        session = pilot.train.session(net, optimizer, seed=1, lr_rule="linear")
        source = Lines(drawn() if others else 1.0)
        stream = session.stream(source, **{size: 4})
        for _ in session.epochs(4):
            for x, y in stream:
                a_step(session, net, optimizer, x, y)

    assert bool(said(script)) == others


@pytest.mark.parametrize("other", ["", "d", "g"])
def test_gradients_of_each_of_two_optimizers_are_compared(other: str) -> None:
    found = said(lambda: steps_two_by_name({"global_batch_size": 4}, other))
    assert f"{SAID} {other}." in found if other else not found


@pytest.mark.parametrize("others", [False, True])
def test_gradients_that_a_script_weighs_are_compared(others: bool) -> None:
    def script() -> None:
        net = model()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        session = pilot.train.session(net, optimizer, seed=1, lr_rule="linear")
        factor = drawn() if others else 1.0
        loader = session.loader(TensorDataset(X, Y), global_batch_size=6, micro_batch_size=2)
        for _ in session.epochs(4):
            for x, y in loader:
                optimizer.zero_grad()
                error = mse_loss(net(x) * factor, y)
                error.backward()
                session.step(error, weight=float(y[0].abs() + 1))

    assert bool(said(script)) == others


def test_the_rate_is_that_of_the_nodes_that_divide_a_step() -> None:
    """In the step in which one rehearses the batch is the others', and so is the learning rate."""
    rates: list[list[float]] = []

    def script() -> None:
        mine: list[float] = []
        rates.append(mine)
        net = model()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
        session = pilot.train.session(net, optimizer, seed=1, lr_rule="linear")
        loader = session.loader(TensorDataset(X, Y), batch_size=2)
        optimizer.register_step_pre_hook(lambda one, *_: mine.append(one.param_groups[0]["lr"]))
        for _ in session.epochs(1):
            an_epoch(session, loader, net, optimizer)

    on_ranks(script, 1, [End(2, (True,), (False,), 1, at="step")])
    first, second = sorted(rates, key=len)
    assert second == [0.5] * 4 + [1.0] * 2
    assert first == second[3:]


def test_one_that_took_anothers_place_is_no_reference_for_those_that_come_later() -> None:
    """Whichever node gives its state: the one whose computations count is the one that began."""
    replaced = End(8, (False,), (False, True), 1, void=True, at="step")
    joins = End(3, (True,), (False,), 1, at="step")
    assert SAID in said(lambda: switches_its_loss({"global_batch_size": 4}), 2, [replaced, joins])


def test_numbers_and_sizes_of_batches_are_those_of_the_nodes_that_divide_the_step() -> None:
    def script() -> None:
        net = model()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        session = pilot.train.session(net, optimizer, seed=1, lr_rule="linear")
        loader = session.loader(TensorDataset(X, Y), global_batch_size=8, micro_batch_size=4)
        for _ in session.epochs(6):
            for number, (x, y) in loader.enumerate():
                optimizer.zero_grad()
                assert len(x) <= loader.batch_size
                assert number < len(loader)
                error = mse_loss(net(x), y)
                error.backward()
                session.step(error)

    for step in range(4, 8):
        on_ranks(script, 1, [End(step, (True,), (False,), 1, at="step")])
