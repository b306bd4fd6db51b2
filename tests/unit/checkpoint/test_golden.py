"""A checkpoint written in format 2, with one value of every kind, loads unchanged."""

from __future__ import annotations

from collections import Counter, OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pilot.checkpoint import store
from tests.unit.checkpoint.states import difference

FILE = Path(__file__).parents[2] / "golden" / "checkpoint-format-2.h5"


def state() -> dict[str, Any]:
    """The file's contents."""
    weight = torch.arange(6, dtype=torch.float32).reshape(2, 3)
    return {
        "model": OrderedDict({"embed.weight": weight, "head.weight": weight, "half": weight.bfloat16()}),
        "optimizer": {"state": {0: {"step": torch.tensor(3.0), "float8": weight.to(torch.float8_e4m3fn)}}},
        "empty": torch.empty(0, 4),
        "complex": torch.tensor([1 - 2j]),
        "plain": [None, True, -1, 2**62, 0.1, -0.0, "text", "\u00e9\0"],
        "floats": (float("nan"), float("inf"), float("-inf")),
        "large": [2**127 - 1, -(2**64)],
        "bytes": b"\0\xff",
        "bytearray": bytearray(b"ab"),
        "sets": [{1, 2}, frozenset(("a",)), torch.Size([2, 3])],
        "counter": Counter({"a": 2, 7: 1}),
        "keys": {3: 1, "3": 2, 2**70: 3, "a/b": 4, "": 5, ".": 6},
        "arrays": [np.array([[1, 2]], ">i4"), np.array(2.5), np.array(["a", "bc"]), np.array(["2020"], "<M8[D]")],
        "scalars": [np.float64(1.5), np.int8(-3), np.bool_(True), np.str_("word")],
        "checkpoint": 1,
    }


def test_every_kind_of_format_2_loads() -> None:
    assert store.verify(FILE) == []
    loaded = store.load(FILE)
    assert (loaded.generation, loaded.step) == (3, 1200)
    assert difference(state(), loaded.state) is None
    model = loaded.state["model"]
    assert model["embed.weight"] is model["head.weight"]
