"""``session.state`` of every kind: a newcomer gets it with its types."""

from __future__ import annotations

import datetime
import enum
import os
from collections import Counter, OrderedDict, defaultdict, namedtuple
from collections.abc import Callable
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch

import pilot.train
from tests.equivalence.recipe import Recipe
from tests.equivalence.refusing import Made
from tests.equivalence.rows import DEVICE, Row, Script, Topic

Value = Callable[[], Any]


class Colour(enum.Enum):
    RED = 1


def keeps(value: Value, session: pilot.train.Session, stepped: bool) -> None:
    """The first step creates it; from then on it stays the same, on every rank."""
    if not stepped:
        return
    state = session.state
    if session.steps == 1:
        state["kept"] = value()
    assert_same(state["kept"], value())
    state["count"] = state.get("count", 0) + 1
    assert state["count"] == session.steps


_counted: WeakKeyDictionary[pilot.train.Session, int] = WeakKeyDictionary()


def counts_on(session: pilot.train.Session, dataset: Any, **options: Any) -> Any:
    """A count of the script's own begins where the trainer is, also on a process that joins."""
    loader = session.loader(dataset, **options)
    _counted[session] = session.steps
    return loader


def counts(session: pilot.train.Session, stepped: bool) -> None:
    """It goes on with each step."""
    _counted[session] += stepped
    assert _counted[session] == session.steps


def assert_same(one: Any, other: Any) -> None:
    """With the same type, to the last bit."""
    assert type(one) is type(other)
    match one:
        case torch.Tensor():
            assert (one.dtype, one.device) == (other.dtype, other.device)
            assert one.shape == other.shape
            assert torch.equal(one, other)
        case np.ndarray():
            assert one.dtype == other.dtype
            assert one.shape == other.shape
            assert one.tobytes() == other.tobytes()
        case dict():
            assert list(one) == list(other)
            for key, value in one.items():
                assert_same(value, other[key])
        case list() | tuple():
            assert len(one) == len(other)
            for a, b in zip(one, other, strict=True):
                assert_same(a, b)
        case _:
            assert one == other or (one != one and other != other)


KEPT: dict[str, Value] = {
    "numbers": lambda: [0, -1, 1.5, True, None, float("inf"), float("nan"), 2**127, -(2**63)],
    "text and bytes": lambda: ["", "ä", "a/b", b"\0\xff", bytearray(b"abc"), os.fsdecode(b"\xff.txt")],
    "dict, list, tuple, nested": lambda: {"a": [1, (2, [3.0, {"b": ()}])], 7: "seven", "": {}},
    "set and frozenset": lambda: [{1, 2, "x"}, frozenset({3.5})],
    "OrderedDict and Counter": lambda: [OrderedDict(b=1, a=2), Counter("aab")],
    "tensors of every shape": lambda: [torch.tensor(1.5), torch.zeros(0, 3), torch.arange(6).view(2, 3).t()],
    "tensors where the model is": lambda: {"a": [torch.ones(3, device=DEVICE)], "b": torch.ones(3)},
    "tensors of every type": lambda: [
        torch.ones(3).to(t)
        for t in (
            torch.bool,
            torch.uint8,
            torch.int64,
            torch.float16,
            torch.bfloat16,
            torch.complex64,
            torch.float8_e5m2,
        )
    ],
    "numpy arrays": lambda: [
        np.array(3),
        np.arange(4, dtype=">i4"),
        np.array(["ab", "c"]),
        np.ones((2, 0)),
        np.float32(2),
    ],
    "the states of random generators": lambda: {
        "numpy": np.random.default_rng(3).bit_generator.state,
        "torch": torch.Generator().manual_seed(3).get_state(),
    },
}


def refused(name: str, value: Value, line: str, instead: str) -> Row:
    def script() -> None:
        made = Made()
        for batch in made.batches():
            made.step(*batch)
            made.session.state["a"] = [value()]

    return Script(name=name, refused=rf"session.state\['a'\]\[0\]{line}", instead=instead, elastic=script)


ROWS: list[Row] = [
    *[Recipe(name=f"session.state: {name}", after_step=partial(keeps, value)) for name, value in KEPT.items()],
    Recipe(name="a count of the script that begins at session.steps", feed=counts_on, after_step=counts),
    refused("session.state: an object", Made, " is of type Made", "tensors, arrays, numbers, ..."),
    refused("session.state: a function", lambda: print, " is of type builtin_function", "what it is made from"),
    refused("session.state: a date", lambda: datetime.date(2026, 1, 1), " is of type date", "its isoformat()"),
    refused("session.state: an enum", lambda: Colour.RED, " is of type Colour", "its value"),
    refused("session.state: a namedtuple", lambda: namedtuple("P", "x")(1), " is of type P", "tuple(it), or a dict"),
    refused("session.state: a defaultdict", lambda: defaultdict(int), " is of type defaultdict", "dict(it)"),
    refused("session.state: keys that are tuples", lambda: {(1, 2): 3}, r" has the key \(1, 2\)", "keys of str or int"),
    refused("session.state: a sparse tensor", lambda: torch.eye(2).to_sparse(), " is a sparse tensor", "a dense one"),
    refused("session.state: an array of objects", lambda: np.array([{}]), " is a numpy array of object", "a list"),
]
TOPIC = Topic(60, "State", ROWS)
