"""Buffers that ``state_dict()`` leaves out are part of the state. What a script keeps on a GPU comes back there:
``meta`` stands for a GPU; of its tensors only the place shows.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import pytest
import torch
from torch import nn

from pilot.train.state.loading import places_in, put_back, put_unsaved, unsaved
from pilot.train.state.optimizer_state import layout_of, take_over

META = torch.device("meta")


class Layer(nn.Linear):
    """With a buffer that is saved, and one that is not."""

    def __init__(self) -> None:
        super().__init__(1, 1)
        self.register_buffer("saved", torch.zeros(2))
        self.register_buffer("scale", torch.ones(2), persistent=False)


def test_they_are_taken_over_in_place_also_in_tracked_modules() -> None:
    giver, taker = nn.Sequential(Layer()), nn.Sequential(Layer())
    given, taken = Layer(), Layer()
    giver[0].scale.fill_(0.5)
    given.scale.fill_(0.25)
    held = taker[0].scale
    state = unsaved(giver, {"loss": given, "count": object()})
    assert {path: [*its] for path, its in state.items()} == {"0": ["scale"], "tracked loss": ["scale"]}
    put_unsaved(state, taker, {"loss": taken})
    assert taker[0].scale is held, "modules may share it"
    assert held.tolist() == [0.5, 0.5]
    assert taken.scale.tolist() == [0.25, 0.25]


def test_one_that_forward_has_made_or_replaced_is_made_here_too() -> None:
    giver, taker = Layer(), Layer()
    giver.register_buffer("mask", torch.ones(3), persistent=False)
    giver.scale = torch.zeros(4, dtype=torch.float64)
    put_unsaved(unsaved(giver, {}), taker, {})
    assert torch.equal(taker.mask, giver.mask)
    assert taker.mask is not giver.mask
    assert taker.scale.dtype == torch.float64
    assert taker.state_dict().keys() == Layer().state_dict().keys()


def state() -> dict[str, Any]:
    there, here = torch.ones(2, device=META), torch.ones(3)
    return {
        "user": {"a": [here, (there, 1)], 3: there, "b": "text"},
        "tracked": OrderedDict(x=here, y=there),
        "z": None,
    }


def test_tensors_on_a_gpu_are_found_and_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    places = places_in(state())
    assert places == [["user", "a", 1, 0], ["user", 3], ["tracked", "y"]]
    here = torch.ones(3)
    given = {"user": {"a": [here, (here, 1)], 3: here, "b": "text"}, "tracked": OrderedDict(x=here, y=here), "z": None}
    assert put_back(given, places) is given, "there is no GPU here"
    monkeypatch.setattr("pilot.train.state.loading.own_device", lambda: META)
    put = put_back(given, places)
    assert places_in(put) == places
    assert type(put["tracked"]) is OrderedDict
    assert put["user"]["a"][0] is here
    assert type(put["user"]["a"][1]) is tuple


class Mixed(torch.optim.Optimizer):
    """With numbers in host memory, as NAdam has, and its steps beside the parameter, as ASGD has."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 0.1})

    def fill(self) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                numbers = {"product": torch.ones(()), "sums": [torch.ones(())]}
                self.state[p] = {"step": torch.ones((), device=p.device), "average": torch.zeros_like(p), **numbers}


def test_an_optimizers_tensors_stay_where_it_put_them() -> None:
    parameter = torch.nn.Parameter(torch.ones(2, device=META))
    one, other = Mixed([parameter]), Mixed([parameter])
    one.fill()
    layout = layout_of(one, one.state_dict())
    assert sorted(map(str, layout)) == [
        "([0, 'product'], None, False)",
        "([0, 'step'], None, True)",
        "([0, 'sums', 0], None, False)",
    ]
    travelled = one.state_dict()
    travelled["state"][0] |= {"step": torch.ones(()), "average": torch.zeros(2)}
    take_over(other, travelled, layout)
    taken = other.state[parameter]
    assert [taken[name].device.type for name in ("step", "average", "product")] == ["meta", "meta", "cpu"]
    assert taken["sums"][0].device.type == "cpu"
    assert layout_of(other, other.state_dict()) == layout
