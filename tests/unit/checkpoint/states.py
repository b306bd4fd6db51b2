"""States to store, exact comparison of states, and hypothesis strategies for them."""

from __future__ import annotations

import math
import os
from collections import Counter, OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st

from pilot.checkpoint import leaves as places
from pilot.checkpoint import store, tree

DTYPES = [
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.float8_e4m3fn,
    torch.complex64,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.uint16,
    torch.bool,
]


def trained(width: int = 8) -> dict[str, Any]:
    """What a training script holds after a step: model, Adam, schedule, random number states."""
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.BatchNorm1d(width), torch.nn.Linear(width, 3))
    optimizer = torch.optim.Adam(model.parameters())
    scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, [30, 30, 60])
    model(torch.randn(4, width)).sum().backward()
    optimizer.step()
    scheduler.step()
    return {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "scheduler": scheduler.state_dict(),
        "random": {"torch": torch.get_rng_state(), "numpy": np.random.default_rng(1).bit_generator.state},
        "cursor": 120,
    }


def difference(a: Any, b: Any, path: str = "") -> str | None:
    """The path at which two states differ, in type or in any bit; None if they are equal."""
    if type(a) is not type(b):
        return f"{path}: {type(a)} and {type(b)}"
    if isinstance(a, dict):
        if list(a) != list(b) or [type(key) for key in a] != [type(key) for key in b]:
            return f"{path}: keys {list(a)} and {list(b)}"
        return next((found for key in a if (found := difference(a[key], b[key], f"{path}/{key}"))), None)
    if isinstance(a, list | tuple):
        if len(a) != len(b):
            return f"{path}: lengths {len(a)} and {len(b)}"
        pairs = zip(a, b, strict=True)
        return next((found for i, (x, y) in enumerate(pairs) if (found := difference(x, y, f"{path}/{i}"))), None)
    return None if _same_leaf(a, b) else f"{path}: {a!r} and {b!r}"


def _same_leaf(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        same_kind = a.dtype == b.dtype and a.shape == b.shape
        return same_kind and (not a.numel() or torch.equal(_bits(a), _bits(b)))
    if isinstance(a, str | bytes):  # numpy's, too: as an array, an empty one has bytes of its own
        return bool(a == b)
    if isinstance(a, np.ndarray | np.generic):
        return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    if isinstance(a, float):
        return (math.isnan(a) and math.isnan(b)) or (a == b and math.copysign(1, a) == math.copysign(1, b))
    return bool(a == b)


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    plain = torch.empty(tensor.shape, dtype=tensor.dtype)
    return plain.copy_(tensor).reshape(-1).view(torch.uint8)


@st.composite
def tensors(draw: st.DrawFn) -> torch.Tensor:
    """Any element type; scalars, and empty, transposed, sliced and expanded tensors."""
    dtype = draw(st.sampled_from(DTYPES))
    shape = draw(st.lists(st.integers(0, 3), max_size=3))
    count = math.prod(shape)
    if dtype is torch.bool:
        tensor = torch.tensor(draw(st.lists(st.booleans(), min_size=count, max_size=count)), dtype=dtype)
    else:
        raw = draw(st.binary(min_size=count * dtype.itemsize, max_size=count * dtype.itemsize))
        tensor = torch.frombuffer(bytearray(raw), dtype=dtype) if raw else torch.empty(0, dtype=dtype)
    tensor = tensor.reshape(shape)
    match draw(st.sampled_from(["as is", "transposed", "sliced", "expanded"])):
        case "transposed" if tensor.dim() == 2:
            return tensor.t()
        case "sliced" if tensor.dim():
            return tensor[::2]
        case "expanded":
            return tensor.expand(2, *tensor.shape)
    return tensor


_KINDS = ["<f8", ">f4", "<f2", "<i2", ">u8", "|b1", "<c16", ">c8", "<M8[s]", "<U3", ">U2", "|S2", "<f16"]
_SHAPES = st.sampled_from([(), (0,), (1,), (3,), (2, 2), (2, 0, 3)])
arrays = st.builds(
    lambda kind, shape, turned: _turned(np.arange(math.prod(shape)).reshape(shape).astype(kind), turned),
    st.sampled_from(_KINDS),
    _SHAPES,
    st.booleans(),
)
texts = st.text(max_size=5) | st.binary(max_size=5).map(os.fsdecode)  # which creates lone surrogates
scalars = st.one_of(
    st.none(), st.booleans(), st.integers(), st.integers(2**62, 2**130), st.floats(), texts, st.binary(max_size=20)
)
numpy_scalars = st.one_of(
    arrays.filter(np.size).map(lambda array: array.reshape(-1)[-1]), texts.map(np.str_), st.binary().map(np.bytes_)
)
generators = st.integers(0, 9).map(lambda seed: np.random.default_rng(seed).bit_generator.state)
leaves = st.one_of(tensors(), arrays, scalars, numpy_scalars, generators, st.binary(max_size=5).map(bytearray))
keys = st.one_of(texts, st.integers(-3, 3), st.sampled_from(["a/b", ".", "", "..", "checkpoint", "0", "\0", 2**70]))


def _turned(array: np.ndarray[Any, Any], turned: bool) -> np.ndarray[Any, Any]:
    return array.T if turned else array


def _is_itself(value: Any) -> bool:
    return bool(value == value)  # but not NaN: no set with it equals another


def _containers(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    mapping = st.dictionaries(keys, inner, max_size=4)
    return st.one_of(
        mapping,
        mapping.map(OrderedDict),
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        st.dictionaries(keys, st.integers(0, 3), max_size=3).map(Counter),
        st.sets(scalars.filter(_is_itself), max_size=3),
        st.sets(st.tuples(st.integers(), texts), max_size=3).map(frozenset),
        st.lists(st.integers(0, 9), max_size=3).map(torch.Size),
    )


states = st.dictionaries(keys, st.recursive(leaves, _containers, max_leaves=12), max_size=5)


def written(directory: Path, step: int, state: dict[str, Any], parts: int = 0, kept: int = 9) -> Path:
    """A checkpoint of ``state``, in one file or in so many parts."""
    if not parts:
        return store.write(directory, 1, step, state, kept).path
    for part in reversed(range(parts)):
        store.write_part(directory, 1, step, part, parts, state)
    return store.write_index(directory, 1, step, parts, kept).path


def again(encoded: tree.Encoded) -> dict[str, Any]:
    """The decomposed state, rebuilt from the very same leaves."""
    found = {leaf.path: leaf for leaf in encoded.leaves}
    state: dict[str, Any] = tree.decode(
        encoded.tree,
        lambda kind, path: places.of_kind(kind, found[path].source),
    )
    return state
