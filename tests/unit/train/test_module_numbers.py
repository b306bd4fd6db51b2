"""Which plain attributes of modules belong to the state: those that training changes."""

from __future__ import annotations

from collections import Counter, OrderedDict
from decimal import Decimal
from fractions import Fraction
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import nn

from pilot.checkpoint.leaves import of_kind
from pilot.checkpoint.tree import decode, encode
from pilot.train.state.module_numbers import ModuleNumbers, Numbers


def stored_and_read(state: Numbers) -> Numbers:
    """As a checkpoint gives it back."""
    encoded = encode(state)
    sources = {leaf.path: leaf.source for leaf in encoded.leaves}
    return cast(
        Numbers, decode(encoded.tree, lambda kind, path: of_kind(kind, sources[encoded.aliases.get(path, path)]))
    )


def made(rank: int) -> tuple[nn.Linear, ModuleNumbers]:
    model = nn.Linear(1, 1)
    model.phase, model.temperature = "warm-up", 1.0
    numbers = ModuleNumbers(model, {})
    model.rank = rank
    return model, numbers


def test_what_a_script_sets_before_its_first_step_is_its_own() -> None:
    giver, given = made(rank=0)
    given.begin()
    giver.temperature = 0.5
    assert given.capture() == {"": {"temperature": 0.5}}

    taker, taken = made(rank=1)
    taken.restore(given.capture())
    taken.begin()
    assert (taker.rank, taker.temperature, taker.phase) == (1, 0.5, "warm-up")


def test_what_was_taken_over_is_given_on_and_what_changed_here_alone_is_put_back() -> None:
    model, numbers = made(rank=0)
    numbers.restore({"": {"phase": "fine"}})
    numbers.begin()
    assert numbers.capture() == {"": {"phase": "fine"}}
    model.temperature = 0.1
    numbers.restore({"": {"phase": "fine"}})
    assert (model.temperature, model.phase) == (1.0, "fine")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ([1.0], [1.0, 0.9]),
        ({"beta": [0.1], 3: (1, "a")}, {"beta": [0.2], 3: (1, "a")}),
        (torch.ones(2), torch.full((2,), 1.0 + 2**-20)),
        (np.zeros(2), np.full(2, 1e-300)),
        (np.float64(1.0), np.float64(2.0)),
        (None, torch.ones(1)),
        ({1, 2}, {1, 2, 3}),
        (b"\x00", b"\x01"),
        (bytearray(1), bytearray(2)),
        (OrderedDict(b=1, a=2), OrderedDict(b=1, a=3)),
        (Counter(), Counter({(1, "a"): 2})),
        ({}, {(1, torch.Size([2])): torch.ones(2), None: [{0.5: {True: "x"}}], "written as": {"written as": 1}}),
        ({}, {"written as": ["pairs", []]}),
        (torch.Size([1]), torch.Size([1, 2])),
        (0j, -1.5 + 2.0j),
        ([Fraction(1, 3)], [Fraction(2, 3), Decimal("0.10")]),
        ({(1, 2)}, {(1, 2), (3, 0.25)}),
        (frozenset(), frozenset({Fraction(1, 3)})),
    ],
)
def test_lists_dicts_tensors_and_arrays_belong_to_it_too(before: Any, after: Any) -> None:
    giver, taker = nn.Linear(1, 1), nn.Linear(1, 1)
    giver.held, taker.held = before, before
    given, taken = ModuleNumbers(giver, {}), ModuleNumbers(taker, {})
    given.begin()
    assert given.capture() == {}
    giver.held = after
    taken.restore(stored_and_read(given.capture()))
    assert str(taker.held) == str(after)
    assert taker.held is not after or not isinstance(after, list | dict | torch.Tensor | np.ndarray)
    taken.begin()
    taken.restore({})
    assert str(taker.held) == str(after), "what was taken over before the first step is what it began with"


def test_a_dict_that_modules_share_stays_shared() -> None:
    shared = {"beta": 0.1}
    model = nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1))
    for layer in model:
        layer.options = shared
    numbers = ModuleNumbers(model, {})
    numbers.restore({"0": {"options": {"beta": 0.2}}, "1": {"options": {"beta": 0.2}}})
    assert shared == {"beta": 0.2}
    assert model[0].options is model[1].options is shared


def test_views_of_parameters_and_what_is_large_are_left_alone() -> None:
    model = nn.Linear(2, 2)
    model.view, model.parts, model.large = model.weight.detach()[0], [nn.Linear(1, 1)], torch.zeros(1 << 20)
    model.itself = []
    model.itself.append(model.itself)
    numbers = ModuleNumbers(model, {})
    numbers.begin()
    with torch.no_grad():
        model.weight += 1
    model.large += 1
    assert numbers.capture() == {}


def test_the_modules_that_a_script_tracks_count_as_well() -> None:
    loss = nn.Linear(1, 1)
    loss.place = 0
    numbers = ModuleNumbers(nn.Linear(1, 1), {"loss": loss, "count": object()})
    numbers.begin()
    loss.place = 3
    given = numbers.capture()
    loss.place = 5
    numbers.restore(given)
    assert loss.place == 3
