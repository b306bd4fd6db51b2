"""What a script changes in ``session.state`` and in what it tracks at the beginning of a turn of its loop, which some
processes do twice. The contract: the beginning computes with what the group has by then; at the turn's first batch the
process takes the group's state once more, so what a step reads in ``session.state`` is the same on all ranks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss

from pilot.checkpoint.tree import copied
from tests.equivalence.loops import BATCH, DATA, Result, assert_equal, fresh, linear, session, tensors
from tests.equivalence.rotation import PARTS, in_parts
from tests.equivalence.rows import in_world
from tests.unit.train.storm import Keep


class Counter(nn.Module):
    """A tracked number."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("n", torch.zeros((), dtype=torch.float64))


def _loop(
    begin: Callable[[Any], None],
    factor: Callable[[Any], float],
    by: str = "epochs",
    each: Callable[[Any], None] = lambda _: None,
) -> Any:
    """Each loss is multiplied by ``factor`` of ``state["t"]``; ``each`` is called after each step that counts."""

    def script(make: Callable[..., Any]) -> Result:
        model = fresh(linear)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        ours = make({"M": model}, {"M": optimizer})
        loader = ours.loader(DATA, global_batch_size=BATCH)

        def train(x: torch.Tensor, y: torch.Tensor) -> None:
            optimizer.zero_grad()
            loss = mse_loss(model(x), y) * factor(ours.state["t"])
            loss.backward()
            if ours.step(loss):
                each(ours)

        if by == "epochs":
            for _ in ours.epochs(2):
                begin(ours)
                for x, y in loader:
                    train(x, y)
        else:
            for _ in ours.iterations(12):
                begin(ours)
                train(*loader.next())
        return tensors(model=model, state=dict(ours.state))

    return script


def lowers_a_temperature(ours: Any) -> None:
    ours.state["t"] = ours.state.get("t", 1.0) * 0.5


def counts_batches(ours: Any) -> None:
    ours.state["batches"] = ours.state.get("batches", 0) + 1


@pytest.mark.parametrize("part", in_parts())
@pytest.mark.parametrize("by", ["epochs", "iterations"])
def test_what_the_beginning_changes_is_the_same_for_all(by: str, part: int) -> None:
    places = range(2 + part, 24, PARTS)
    assert_equal(_loop(lowers_a_temperature, float, by), operations=places, joins=places)


@pytest.mark.parametrize("part", in_parts())
def test_with_a_count_that_each_step_changes_too(part: int) -> None:
    assert_equal(_loop(lowers_a_temperature, float, each=counts_batches), joins=range(2 + part, 24, PARTS))


@pytest.mark.parametrize("point", [0, 1])
@pytest.mark.parametrize("step", range(1, 11))
def test_a_run_that_resumes_in_the_middle_has_the_same(step: int, point: int) -> None:
    script = _loop(lowers_a_temperature, float)
    world, (expected,) = in_world(lambda: script(session), 1, [], keep=Keep(step, point))
    assert world.kept is not None
    _, (resumed,) = in_world(lambda: script(session), 1, [], begin=world.kept)
    assert resumed.keys() == expected.keys()
    assert all(bool(torch.as_tensor(resumed[name] == value).all()) for name, value in expected.items())


@pytest.mark.parametrize("part", in_parts())
def test_a_tracked_count_of_iterations_counts_a_repeated_one_once(part: int) -> None:
    def script(make: Callable[..., Any]) -> Result:
        model, counter = fresh(linear), Counter()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        ours = make({"M": model}, {"M": optimizer})
        ours.track("counter", counter)
        loader = ours.loader(DATA, global_batch_size=BATCH)
        for _ in ours.iterations(12):
            counter.n += 1
            x, y = loader.next()
            optimizer.zero_grad()
            loss = mse_loss(model(x), y)
            loss.backward()
            ours.step(loss)
        return tensors(model=model, counter=counter)

    places = range(2 + part, 24, PARTS)
    assert_equal(script, operations=places, joins=places)


KINDS: dict[str, tuple[Any, Callable[[Any], Any], Callable[[Any], float]]] = {
    "nothing, and then a text": (None, lambda v: "warm" if v is None else v, lambda v: 0.5 + len(v)),
    "numpy's numbers": (np.float32(1), lambda v: v * np.float32(0.5), float),
    "a tensor": (torch.tensor(1.0, dtype=torch.float64), lambda v: v * 0.5, float),
    "a tensor, and then a number": (torch.tensor(1.0, dtype=torch.float64), lambda v: float(v) * 0.5, float),
    "a tuple": ((1.0, 2.0), lambda v: tuple(one * 0.5 for one in v), sum),
    "a dict": ({"a": {"t": 1.0}}, lambda v: v["a"].update(t=v["a"]["t"] * 0.5) or v, lambda v: v["a"]["t"]),
    "a list": ([1.0], lambda v: v.append(v[-1] * 0.5) or v, sum),
}


@pytest.mark.parametrize("kind", KINDS)
def test_values_of_every_kind_that_the_beginning_changes(kind: str) -> None:
    first, change, factor = KINDS[kind]

    def begin(ours: Any) -> None:
        ours.state["t"] = change(ours.state.get("t", copied({"t": first})["t"]))

    script = _loop(begin, factor)
    assert_equal(script, operations=[6], joins=[5, 16])
    world, (expected,) = in_world(lambda: script(session), 1, [], keep=Keep(8, 1))
    assert world.kept is not None
    _, (resumed,) = in_world(lambda: script(session), 1, [], begin=world.kept)
    assert all(torch.equal(resumed[name], tensor) for name, tensor in expected.items() if name.startswith("model"))
