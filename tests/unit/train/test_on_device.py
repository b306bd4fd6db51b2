"""What a script keeps on a GPU comes back there. ``meta`` stands for a GPU; of its tensors only the place shows."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import pytest
import torch

from pilot.train.state.on_device import places_in, put_back
from pilot.train.state.optimizer_state import homes_of, take_over

META = torch.device("meta")


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
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: META)
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
    homes = homes_of(one, one.state_dict())
    assert sorted(map(str, homes)) == ["([0, 'product'], False)", "([0, 'step'], True)", "([0, 'sums', 0], False)"]
    travelled = one.state_dict()
    travelled["state"][0] |= {"step": torch.ones(()), "average": torch.zeros(2)}
    take_over(other, travelled, [], homes)
    taken = other.state[parameter]
    assert [taken[name].device.type for name in ("step", "average", "product")] == ["meta", "meta", "cpu"]
    assert taken["sums"][0].device.type == "cpu"
    assert homes_of(other, other.state_dict()) == homes
