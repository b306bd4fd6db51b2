"""What is written is read back with the same types and the same bits."""

from __future__ import annotations

import signal
from collections import OrderedDict, defaultdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from torch._subclasses.fake_tensor import FakeTensorMode

from pilot.checkpoint import store
from pilot.checkpoint.snapshot import Snapshots
from pilot.checkpoint.tree import MAX_DEPTH, encode
from pilot.core.errors import CheckpointError
from tests.unit.checkpoint.states import again, difference, states, trained

SLOW_DISK = settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@SLOW_DISK
@given(state=states)
def test_a_snapshot_of_any_state_equals_it_and_shares_nothing(tmp_path: Path, state: dict[str, Any]) -> None:
    copy = Snapshots().take(encode(state))
    assert difference(state, again(copy)) is None
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


def _quantized() -> torch.Tensor:
    return torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8)


def _fake() -> torch.Tensor:
    with FakeTensorMode():
        return torch.ones(3)


def _cycle() -> dict[str, Any]:
    state: dict[str, Any] = {}
    state["self"] = state
    return state


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ({"session": {"best": object()}}, "state['session']['best'] is of type object; a state can hold tensors"),
        ({"session": _Point(1)}, "is of type _Point; only its script could recreate it: store a tuple, or a dict"),
        ({"d": defaultdict(int)}, "is of type defaultdict; keep dict(it)"),
        ({"after": torch.nn.Linear(1, 1)}, "is of type Linear; keep its state_dict() in its place"),
        ({"i": signal.SIGTERM}, "is of type Signals"),
        ({"s": {"seen": {(1, Path("p"))}}}, "state['s']['seen'][...][1] is of type PosixPath"),
        ({"s": torch.eye(3).to_sparse()}, "state['s'] is a sparse tensor"),
        ({"n": torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])}, "state['n'] is a nested tensor"),
        ({"m": torch.empty(3, device="meta")}, "state['m'] is a tensor on the device 'meta'"),
        ({"q": _quantized()}, "state['q'] is a quantized tensor: store tensor.int_repr()"),
        ({"l": torch.nn.LazyLinear(3).weight}, "state['l'] is a lazy parameter without a shape yet"),
        ({"u": torch.empty(3, dtype=torch.uint4)}, "state['u'] is a tensor of torch.uint4, which torch cannot copy"),
        ({"f": _fake()}, "state['f'] is a FakeTensor, which has no bytes of its own"),
        ({"o": np.array([object()])}, "state['o'] is a numpy array of object"),
        ({"r": np.zeros(2, "f4,i4")}, "state['r'] is a numpy array of [('f0', '<f4'), ('f1', '<i4')]"),
        ({"v": np.array(["a"], np.dtypes.StringDType())}, "state['v'] is a numpy array of StringDType()"),
        ({"v": np.void(b"ab")}, "state['v'] is of type numpy.void"),
        ({"v": np.ma.masked_array([1])}, "state['v'] is of type MaskedArray"),
        ({"k": {(1, 2): 3}}, "state['k'] has the key (1, 2): keys of a state must be str or int"),
        ({"k": {True: 3}}, "state['k'] has the key True"),
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


def test_a_state_as_deep_as_it_may_be_comes_back(tmp_path: Path) -> None:
    state: dict[str, Any] = {"end": 1}
    for _ in range(MAX_DEPTH - 1):
        state = {"in": state}
    assert store.load(store.write(tmp_path, 1, 1, state, kept=1).path).state == state
    with pytest.raises(CheckpointError, match=r"state\['in'\].*\.\.\. is nested more than"):
        store.write(tmp_path, 1, 2, {"in": state}, kept=1)
