"""States as blocks of bytes; what is refused, and when."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import nn

from pilot.checkpoint.tree import copied, encode
from pilot.core.errors import UserError
from pilot.train.state.block import Packed, unpack
from tests.equivalence.loops import DATA, Loop
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


def test_an_unpacked_state_refers_to_the_block_without_a_copy() -> None:
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


# --- a value that does not fit is refused as soon as it is seen, even alone ------------------------------------------


def sets(value: Any) -> Any:
    return lambda loop: loop.session.state.update(a=value)


def quantizes(loop: Loop) -> None:
    loop.model.register_buffer("q", torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8))


def steps_with(place: Any) -> Any:
    """The optimizer holds an object from its first step on."""

    def script(loop: Loop) -> None:
        loop.train(body=lambda *batch: (loop.step(*batch), place(loop).update(x=object())))

    return script


def nothing_more(loop: Loop) -> None:
    next(loop.session.epochs(1))


def evaluates(loop: Loop) -> None:
    loop.session.evaluate(DATA, loop.measure)


@pytest.mark.parametrize(
    ("before", "script", "line", "steps"),
    [
        (
            sets([0, 1, 2, Point(1)]),
            nothing_more,
            r"session\.state\['a'\]\[3\] is of type Point; .* store a tuple, or a dict",
            0,
        ),
        (
            sets({"b": torch.eye(2).to_sparse()}),
            nothing_more,
            r"session\.state\['a'\]\['b'\] is a sparse tensor",
            0,
        ),
        (sets(object()), evaluates, r"session\.state\['a'\]", 0),
        (quantizes, nothing_more, r"model\.state_dict\(\)\['q'\] is a quantized tensor", 0),
        (
            lambda _: None,
            lambda loop: loop.train(last=lambda _: sets(object())(loop)),
            r"session\.state\['a'\] is of type object",
            6,
        ),
        (
            lambda _: None,
            steps_with(lambda loop: loop.optimizer.state[loop.model[0].weight]),
            r"optimizer\.state\[0\]\['x'\] is of type object",
            1,
        ),
        (
            lambda _: None,
            steps_with(lambda loop: loop.optimizer.param_groups[0]),
            r"optimizer\.param_groups\[0\]\['x'\] is of type object",
            1,
        ),
    ],
)
def test_it_is_refused_with_its_place(before: Any, script: Any, line: str, steps: int) -> None:
    loop = Loop()
    before(loop)
    with pytest.raises(UserError, match=line):
        script(loop)
    assert loop.session.steps == steps
