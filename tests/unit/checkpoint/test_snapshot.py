"""Snapshots: a copy unaffected by later changes of the state, in memory that is reused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from pilot.checkpoint.snapshot import Snapshots
from pilot.checkpoint.tree import encode
from tests.unit.checkpoint.states import again, difference, trained


def _taken(snapshots: Snapshots, state: dict[str, Any]) -> dict[str, Any]:
    return again(snapshots.take(encode(state)))


def _addresses(state: dict[str, torch.Tensor]) -> list[int]:
    return [tensor.data_ptr() for tensor in state.values()]


def test_a_copy_keeps_what_was_while_training_goes_on() -> None:
    state, before = trained(), trained()
    copy = _taken(Snapshots(), state)
    for tensor in state["model"].values():
        tensor.zero_()
    state["optimizer"]["param_groups"][0]["lr"] = 9.0
    state["scheduler"]["milestones"].clear()
    assert difference(copy, before) is None


def test_the_same_memory_is_used_for_the_next_copy() -> None:
    snapshots, state = Snapshots(), {"a": torch.ones(1000), "b": torch.ones(7, dtype=torch.bfloat16)}
    first = _addresses(_taken(snapshots, state))
    state["a"] += 1
    again = _taken(snapshots, state)
    assert _addresses(again) == first
    assert again["a"][0] == 2


def test_a_state_of_another_shape_is_copied_as_well() -> None:
    snapshots = Snapshots()
    for size in (10, 10_000, 3, 0):
        state = {"a": torch.rand(size), "b": torch.arange(size)}
        assert difference(state, _taken(snapshots, state)) is None


def test_tied_tensors_are_copied_once() -> None:
    weight = torch.rand(1000)
    copy = _taken(Snapshots(), {"a": weight, "b": weight.view(1000), "c": weight.clone()})
    assert copy["a"] is copy["b"]
    assert copy["c"] is not copy["a"]


def test_tensors_that_need_gradients_are_copied_without_their_history() -> None:
    parameter = torch.rand(3, requires_grad=True)
    copy = _taken(Snapshots(), {"p": parameter, "activation": parameter * 2})
    assert not copy["p"].requires_grad
    assert copy["activation"].grad_fn is None


def test_arrays_and_containers_are_copied_too() -> None:
    state = {"array": np.zeros(3), "bytes": bytearray(b"ab"), "set": {1}, "list": [1]}
    copy = _taken(Snapshots(), state)
    state["array"] += 1
    state["bytes"].extend(b"c")
    state["set"].add(2)
    state["list"].append(2)
    assert difference(copy, {"array": np.zeros(3), "bytes": bytearray(b"ab"), "set": {1}, "list": [1]}) is None


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")
def test_tensors_on_a_gpu_are_copied_to_pinned_memory() -> None:
    state = {"gpu": torch.arange(1000, device="cuda"), "cpu": torch.ones(3)}
    snapshots = Snapshots()
    for _ in range(2):
        copy = _taken(snapshots, state)
        assert copy["gpu"].is_pinned()
        assert torch.equal(copy["gpu"], state["gpu"].cpu())
        state["gpu"] += 1
