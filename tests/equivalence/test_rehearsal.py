"""A node that joins computes what another one computes; if its gradients differ, it leaves, whatever the reason."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss
from torch.utils.data import IterableDataset

from pilot.core.errors import JoinedOtherwise
from pilot.protocol.run_identity import ACCEPT
from pilot.train.check.group import ScenarioGroup
from tests.equivalence.hidden import (
    FIXED,
    PER_NODE,
    SCRIPTS,
    Hidden,
    Script,
    X,
    Y,
    drawn,
    draws_a_constant,
    registers_a_hook,
    steps_two_by_name,
    switches_its_loss,
)
from tests.equivalence.loops import fresh, mlp
from tests.equivalence.rows import on_ranks
from tests.unit.train.storm import End

JOINS = [End(9, (True,), (False,), 1, at="step")]
"""One rank; a second comes in the third of four epochs."""
DIFFERS = "computes another gradient of"


def refusal(script: Callable[[], Any], count: int = 1, ends: Sequence[End] = JOINS) -> str:
    """Return the error with which a rank that joins ends; "": none does."""
    try:
        on_ranks(script, count, ends)
    except JoinedOtherwise as error:
        return str(error)
    return ""


@pytest.mark.parametrize("options", [FIXED, PER_NODE], ids=["fixed", "per node"])
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.__name__)
def test_a_rank_with_another_value_ends(script: Script, options: dict[str, int]) -> None:
    script(options)
    assert "Possible causes: a value that the script switches" in refusal(lambda: script(options))


def test_the_parameter_whose_gradients_differ_most_is_named() -> None:
    assert f"{DIFFERS} 0.weight than rank" in refusal(lambda: registers_a_hook(FIXED))


def test_a_difference_that_the_user_accepts_is_only_remarked(monkeypatch: pytest.MonkeyPatch) -> None:
    remarks: list[str] = []
    monkeypatch.setenv(ACCEPT, "gradients")
    monkeypatch.setattr(ScenarioGroup, "remark", lambda _, text: remarks.append(text))
    on_ranks(lambda: draws_a_constant(FIXED), 1, JOINS)
    assert len(remarks) == 2
    assert remarks[0] == remarks[1]
    assert re.fullmatch(rf"rank \d {DIFFERS} .*parameters \(accepted\)", remarks[0])


@pytest.mark.parametrize(
    ("count", "ends"),
    [
        (1, JOINS),
        (1, [*JOINS, End(8, (True,), (False,), 2)]),
        (2, [End(9, (True,), (False, True), 1), End(6, (False,), (True,), 1)]),
        (2, []),
    ],
    ids=["joins", "joins twice", "is replaced", "begin together"],
)
@pytest.mark.parametrize("micro", [None, 3])
@pytest.mark.parametrize("size", ["global_batch_size", "batch_size"])
def test_a_rank_with_the_same_values_stays(count: int, ends: list[End], micro: int | None, size: str) -> None:
    """Dropout draws as on the rank that is repeated."""

    def script() -> None:
        model = nn.Sequential(fresh(mlp), nn.Dropout(0.5), nn.Linear(1, 1).double())
        Hidden({size: 6, "micro_batch_size": micro}, model=model).run()

    on_ranks(script, count, ends)


def test_all_that_join_at_once_are_compared() -> None:
    """Each ends by itself."""
    ends = [End(5, (True,), (False,), 3, at="step")]
    assert DIFFERS in refusal(lambda: draws_a_constant({"batch_size": 2}), 1, ends)


class Lines(IterableDataset[Any]):
    """The same samples, one after the other."""

    def __init__(self, by: float) -> None:
        self._by = by

    def __iter__(self) -> Iterator[Any]:
        yield from ((x * self._by, y) for x, y in zip(X, Y, strict=True))


@pytest.mark.parametrize("others", [False, True])
@pytest.mark.parametrize("options", [FIXED, PER_NODE], ids=["fixed", "per node"])
def test_samples_of_a_stream_are_repeated(options: dict[str, int], others: bool) -> None:
    def script() -> None:
        Hidden(options, data=Lines(drawn() if others else 1.0), stream=True).run()

    assert bool(refusal(script)) == others


@pytest.mark.parametrize("other", ["", "d", "g"])
def test_gradients_of_each_of_two_optimizers_are_compared(other: str) -> None:
    found = refusal(lambda: steps_two_by_name(FIXED, other))
    assert f"{DIFFERS} {other}." in found if other else not found


@pytest.mark.parametrize("others", [False, True])
def test_weighted_gradients_are_compared(others: bool) -> None:
    def script() -> None:
        factor = drawn() if others else 1.0
        loop = Hidden({"global_batch_size": 6, "micro_batch_size": 2})

        def body(x: torch.Tensor, y: torch.Tensor) -> None:
            loop.optimizer.zero_grad()
            error = mse_loss(loop.model(x) * factor, y)
            error.backward()
            loop.session.step(error, weight=float(y[0].abs() + 1))

        loop.run(body=body)

    assert bool(refusal(script)) == others


def test_the_rate_is_that_of_the_nodes_that_divide_a_step() -> None:
    """In the step in which a node rehearses the batch is the others', and so is the learning rate."""
    rates: list[list[float]] = []

    def script() -> None:
        mine: list[float] = []
        rates.append(mine)
        loop = Hidden({"batch_size": 2})
        loop.optimizer.register_step_pre_hook(lambda one, *_: mine.append(one.param_groups[0]["lr"]))
        loop.train(1)

    on_ranks(script, 1, [End(2, (True,), (False,), 1, at="step")])
    first, second = sorted(rates, key=len)
    assert second == [0.01] * 4 + [0.02] * 2
    assert first == second[3:]


def test_a_rank_that_took_anothers_place_is_no_reference_for_those_that_come_later() -> None:
    """Whichever node gives its state: the computations that count are those of the node that began."""
    replaced = End(8, (False,), (False, True), 1, void=True, at="step")
    joins = End(3, (True,), (False,), 1, at="step")
    assert DIFFERS in refusal(lambda: switches_its_loss(FIXED), 2, [replaced, joins])


def test_numbers_and_sizes_of_batches_are_those_of_the_nodes_that_divide_the_step() -> None:
    def script() -> None:
        loop = Hidden({"global_batch_size": 8, "micro_batch_size": 4})
        for _ in loop.session.epochs(6):
            for number, batch in loop.loader.enumerate():
                assert len(batch[0]) <= loop.loader.batch_size
                assert number < len(loop.loader)
                loop.step(*batch)

    for step in range(4, 8):
        on_ranks(script, 1, [End(step, (True,), (False,), 1, at="step")])
