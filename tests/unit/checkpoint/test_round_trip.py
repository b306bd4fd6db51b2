"""What is written comes back with the same types and the same bits."""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings

from pilot.checkpoint import store
from pilot.checkpoint.snapshot import snapshot
from pilot.core.errors import CheckpointError
from tests.unit.checkpoint.states import difference, states, trained

SLOW_DISK = settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@SLOW_DISK
@given(state=states)
def test_any_state_comes_back_bit_for_bit(tmp_path: Path, state: dict[str, Any]) -> None:
    written = store.write(tmp_path, 1, 1, state, kept=1)
    assert store.verify(written.path) == []
    assert difference(state, store.load(written.path).state) is None


@SLOW_DISK
@given(state=states)
def test_a_snapshot_of_any_state_equals_it_and_shares_nothing(tmp_path: Path, state: dict[str, Any]) -> None:
    copy = snapshot(state)
    assert difference(state, copy) is None
    written = store.write(tmp_path, 1, 1, copy, kept=1)
    assert difference(state, store.load(written.path).state) is None


def test_a_training_state_goes_on_where_it_was(tmp_path: Path) -> None:
    state = trained()
    loaded = store.load(store.write(tmp_path, 1, 1, state, kept=1).path).state
    assert difference(state, loaded) is None
    assert isinstance(loaded["model"], OrderedDict)
    assert list(loaded["optimizer"]["state"]) == [0, 1, 2, 3, 4, 5]
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 3))
    model.load_state_dict(loaded["model"])
    optimizer = torch.optim.Adam(model.parameters())
    optimizer.load_state_dict(loaded["optimizer"])
    torch.set_rng_state(loaded["random"]["torch"])


def test_tied_tensors_are_stored_once_and_come_back_tied(tmp_path: Path) -> None:
    weight = torch.randn(1000, 100)
    tied = store.write(tmp_path / "tied", 1, 1, {"a": weight, "b": weight.view(1000, 100)}, kept=1)
    apart = store.write(tmp_path / "apart", 1, 1, {"a": weight, "b": weight.clone()}, kept=1)
    assert apart.bytes - tied.bytes >= 4 * weight.numel()
    loaded = store.load(tied.path).state
    assert loaded["a"] is loaded["b"]
    assert torch.equal(loaded["a"], weight)


def test_views_of_one_memory_are_not_taken_for_tied(tmp_path: Path) -> None:
    base = torch.randn(4, 4)
    z = torch.randn(3, dtype=torch.complex64)
    state = {"whole": base, "transposed": base.t(), "row": base[0], "z": z, "conjugate": z.conj(), "empty": base[:0]}
    assert difference(state, store.load(store.write(tmp_path, 1, 1, state, kept=1).path).state) is None


def test_a_parameter_comes_back_as_a_plain_tensor(tmp_path: Path) -> None:
    parameter = torch.nn.Parameter(torch.randn(3))
    loaded = store.load(store.write(tmp_path, 1, 1, {"p": parameter}, kept=1).path).state
    assert type(loaded["p"]) is torch.Tensor
    assert torch.equal(loaded["p"], parameter.detach())


class _Point(NamedTuple):
    x: int


def _cycle() -> dict[str, Any]:
    state: dict[str, Any] = {}
    state["self"] = state
    return state


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ({"session": {"best": object()}}, "'session/best': a value of type object"),
        ({"session": _Point(1)}, "a value of type _Point"),
        ({"d": defaultdict(int)}, "a value of type defaultdict"),
        ({"s": torch.eye(3).to_sparse()}, "'s': only dense tensors"),
        ({"m": torch.empty(3, device="meta")}, "'m': only dense tensors"),
        ({"o": np.array([object()])}, "numpy object"),
        ({"k": {(1, 2): 3}}, "the key (1, 2) is neither str nor int"),
        ({"k": {True: 3}}, "the key True is neither str nor int"),
        (_cycle(), "contains itself"),
    ],
)
def test_what_cannot_be_stored_is_refused_by_name_and_nothing_is_written(
    tmp_path: Path, state: dict[str, Any], words: str
) -> None:
    with pytest.raises(CheckpointError) as caught:
        store.write(tmp_path, 1, 1, state, kept=1)
    assert words in str(caught.value)
    assert list(tmp_path.iterdir()) == []
