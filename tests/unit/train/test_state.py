"""States as blocks of bytes; what is refused, and when."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import pilot.train
from pilot.checkpoint.tree import copied, encode
from pilot.core.errors import UserError
from pilot.train.state.block import Packed, unpack
from tests.property.test_serializer import through_a_block
from tests.unit.checkpoint.states import difference


class Point(NamedTuple):
    x: int


def test_tied_tensors_travel_once_and_stay_tied() -> None:
    weight, array = torch.randn(1000), np.ones(1000)
    state = {"a": weight, "b": weight.view(1000), "c": array, "d": array}
    assert Packed(encode(state)).size < 4 * 1000 + 8 * 1000 + 1000
    for back in (through_a_block(state), copied(state)):
        assert back["a"] is back["b"]
        assert back["c"] is back["d"]


def test_what_came_looks_into_the_block_and_nothing_was_copied() -> None:
    block = Packed(encode({"tensor": torch.zeros(3), "array": np.zeros(3)})).to_bytes()
    back = unpack(block)
    back["tensor"] += 1
    back["array"] += 1
    again = unpack(block)
    assert again["tensor"].tolist() == again["array"].tolist() == [1, 1, 1]


def test_parameters_and_conjugates_are_written_as_they_are_without_history() -> None:
    parameter, z = nn.Parameter(torch.randn(3)), torch.randn(3, dtype=torch.complex64)
    back = through_a_block({"p": parameter, "z": z.conj(), "i": z.conj().imag})
    assert not back["p"].requires_grad
    assert torch.equal(back["p"], parameter.detach())
    assert torch.equal(back["z"], z.conj())
    assert torch.equal(back["i"], -z.imag)


def test_a_copy_does_not_follow_the_original() -> None:
    state = {"a": [torch.zeros(2)], "b": {"c": {1}}, "d": bytearray(b"x")}
    copy = copied(state)
    state["a"][0] += 1
    state["b"]["c"].add(2)
    state["d"].extend(b"y")
    assert difference(copy, {"a": [torch.zeros(2)], "b": {"c": {1}}, "d": bytearray(b"x")}) is None


# --- what does not fit is refused as soon as it is seen, even alone --------------------------------------------------


def _made() -> tuple[nn.Module, torch.optim.Optimizer, pilot.train.Session, Any]:
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    session = pilot.train.session(model, optimizer)
    return model, optimizer, session, session.loader(TensorDataset(torch.ones(8, 2)), global_batch_size=2)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ([0, 1, 2, Point(1)], r"session\.state\['a'\]\[3\] is of type Point; .* store a tuple, or a dict"),
        ({"b": torch.eye(2).to_sparse()}, r"session\.state\['a'\]\['b'\] is a sparse tensor"),
        ({(1, 2): 3}, r"session\.state\['a'\] has the key \(1, 2\)"),
    ],
)
def test_the_session_s_state_is_refused_before_the_first_batch(value: Any, words: str) -> None:
    _, _, session, _ = _made()
    session.state["a"] = value
    with pytest.raises(UserError, match=words):
        next(session.epochs(1))


def test_what_the_end_of_an_epoch_leaves_is_refused_before_the_next() -> None:
    model, optimizer, session, loader = _made()
    epochs = []
    with pytest.raises(UserError, match=r"session\.state\['a'\] is of type object"):
        for epoch in session.epochs(3):
            epochs.append(epoch)
            for (x,) in loader:
                optimizer.zero_grad()
                model(x).sum().backward()
                session.step()
            session.state["a"] = object()
    assert epochs == [0]


def test_an_evaluation_refuses_it() -> None:
    _, _, session, _ = _made()
    session.state["a"] = object()
    with pytest.raises(UserError, match=r"session\.state\['a'\]"):
        session.evaluate(TensorDataset(torch.ones(2)), lambda batch: {"mean": batch[0].mean()})


@pytest.mark.parametrize(
    ("attribute", "words"),
    [
        ("state", r"optimizer\.state\[0\]\['x'\] is of type object"),
        ("param_groups", r"optimizer\.param_groups\[0\]\['x'\] is of type object"),
    ],
)
def test_the_optimizer_s_state_is_named_as_the_script_writes_it(attribute: str, words: str) -> None:
    model, optimizer, session, loader = _made()
    with pytest.raises(UserError, match=words):
        for _ in session.epochs(1):
            for (x,) in loader:
                model(x).sum().backward()
                session.step()
                place = optimizer.state[model.weight] if attribute == "state" else optimizer.param_groups[0]
                place["x"] = object()
    assert session.steps == 1


def test_a_model_with_a_quantized_buffer_is_refused_and_not_a_crash() -> None:
    model, _, session, _ = _made()
    model.register_buffer("q", torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8))
    with pytest.raises(UserError, match=r"model\.state_dict\(\)\['q'\] is a quantized tensor"):
        next(session.epochs(1))
