"""States as blocks of bytes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

from pilot.core.errors import UserError
from pilot.train.state import Packed, copied, unpack

plain = (
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | st.text() | st.binary()
)
trees = st.recursive(
    plain,
    lambda inner: st.lists(inner) | st.lists(inner).map(tuple) | st.dictionaries(st.text() | st.integers(0, 99), inner),
    max_leaves=20,
)


def through_bytes(state: dict[str, Any]) -> dict[str, Any]:
    packed = Packed(state)
    block = bytearray(packed.size)
    packed.write(block)
    return unpack(block)


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.dictionaries(st.text(), trees))
def test_containers_and_plain_values_come_back_as_they_were(state: dict[str, Any]) -> None:
    assert through_bytes(state) == state


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.bool, torch.uint8])
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 3, 4)])
def test_tensors_come_back_to_the_last_bit(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    tensor = torch.randn(shape).to(dtype)
    back = through_bytes({"a": [tensor], "b": tensor.t() if tensor.dim() < 3 else tensor})
    assert back["a"][0].dtype is dtype
    assert torch.equal(back["a"][0], tensor)


def test_arrays_stay_arrays_and_a_transposed_tensor_its_values() -> None:
    back = through_bytes(
        {"array": np.arange(6).reshape(2, 3), "scalar": np.float32(2), "tensor": torch.randn(2, 3).t()}
    )
    assert isinstance(back["array"], np.ndarray)
    np.testing.assert_array_equal(back["array"], np.arange(6).reshape(2, 3))
    assert back["scalar"] == 2.0
    assert back["tensor"].shape == (3, 2)


def test_an_optimizer_s_state_comes_back() -> None:
    model = nn.Linear(3, 2)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    back = through_bytes(optimizer.state_dict())
    other = torch.optim.Adam(nn.Linear(3, 2).parameters())
    other.load_state_dict(copied(back))
    torch.testing.assert_close(other.state_dict(), optimizer.state_dict(), rtol=0, atol=0)


def test_a_copy_does_not_follow_the_original() -> None:
    tensor = torch.zeros(2)
    copy = copied({"a": [tensor]})
    tensor += 1
    assert copy["a"][0].tolist() == [0, 0]


@pytest.mark.parametrize(
    ("state", "where"),
    [
        ({"a": {"b": object()}}, r"state\['a'\]\['b'\] is a object"),
        ({"a": {(1, 2): 3}}, r"the key \(1, 2\)"),
        ({"a": torch.eye(2).to_sparse()}, "sparse"),
    ],
)
def test_what_cannot_travel_is_named(state: dict[str, Any], where: str) -> None:
    with pytest.raises(UserError, match=where):
        Packed(state)
