"""A state (nested containers with arrays as leaves) as a JSON tree and a flat list of named leaves, and back.

The tree keeps what HDF5 has no word for: int and str keys, tuple and list, None, bool, exact floats, large integers.
JSON values stand for themselves; whatever else is an object with one key that names its type::

    {"dict": [[key, value], ...]}   {"tuple": [...]}   {"tensor": PATH}   {"array": PATH}   {"float": "nan"}
"""

from __future__ import annotations

import math
import re
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from pilot.checkpoint import dtypes
from pilot.core.errors import CheckpointError

OWN_GROUP = "checkpoint"
"""The group of what describes the checkpoint; no leaf lies in it."""

_MAPPINGS: dict[str, type] = {"dict": dict, "OrderedDict": OrderedDict, "Counter": Counter}
_SEQUENCES: dict[str, type] = {"tuple": tuple, "set": set, "frozenset": frozenset, "Size": torch.Size}
_SMALL_INT = 2**63
_MAX_NAME = 200
_PLAIN = re.compile(rf"[\w-][\w.-]{{,{_MAX_NAME - 1}}}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Leaf:
    """One array of the state under its path in the file. ``data`` is all its bytes, C order, shape (bytes,)."""

    path: str
    dtype: str
    shape: tuple[int, ...]
    data: np.ndarray[Any, np.dtype[np.uint8]]


@dataclass(frozen=True, slots=True)
class Encoded:
    """A state taken apart. ``aliases`` are further paths of a leaf that occurs more than once (tied tensors)."""

    tree: Any
    leaves: list[Leaf]
    aliases: dict[str, str]


def encode(state: Mapping[str, Any]) -> Encoded:
    """Take ``state`` apart. :class:`CheckpointError` names the place of a value that cannot be stored."""
    encoder = _Encoder()
    try:
        tree = encoder.mapping("dict", state, "")
    except RecursionError:
        raise CheckpointError("the state is nested too deeply, or contains itself") from None
    return Encoded(tree, list(encoder.leaves.values()), encoder.aliases)


def decode(tree: Any, leaf: Callable[[str, str], Any]) -> Any:
    """The state again; ``leaf(kind, path)`` gives each array (kind: tensor, array, scalar, bytes)."""
    if isinstance(tree, list):
        return [decode(item, leaf) for item in tree]
    if not isinstance(tree, dict):
        return tree
    ((kind, value),) = tree.items()
    if kind in _MAPPINGS:
        return _MAPPINGS[kind]({decode(key, leaf): decode(item, leaf) for key, item in value})
    if kind in _SEQUENCES:
        return _SEQUENCES[kind](decode(item, leaf) for item in value)
    if kind == "float":
        return float(value)
    return int(value, 16) if kind == "int" else leaf(kind, value)


def identity(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Equal for tensors that show the same memory in the same way (tied parameters), while they live."""
    view = tensor.shape, tensor.stride(), tensor.is_conj(), tensor.is_neg()
    return tensor.data_ptr() or id(tensor), tensor.device, tensor.dtype, *view


class _Encoder:
    def __init__(self) -> None:
        self.leaves: dict[str, Leaf] = {}
        self.aliases: dict[str, str] = {}
        self._stored: dict[tuple[Any, ...], str] = {}

    def value(self, value: Any, path: str) -> Any:
        kind = type(value)
        if value is None or kind is bool or kind is str:
            return value
        if kind is int:
            return value if -_SMALL_INT <= value < _SMALL_INT else {"int": hex(value)}
        if kind is float:
            return value if math.isfinite(value) else {"float": str(value)}
        if isinstance(value, torch.Tensor):
            return {"tensor": self._tensor(value, path)}
        if kind is np.ndarray or isinstance(value, np.generic):
            return {"array" if kind is np.ndarray else "scalar": self._array(value, path)}
        if kind in (bytes, bytearray):
            return {kind.__name__: self._bytes(value, path)}
        return self._container(value, path)

    def _container(self, value: Any, path: str) -> Any:
        kind = type(value)
        for name, mapping in _MAPPINGS.items():
            if kind is mapping:
                return self.mapping(name, value, path)
        if kind is list:
            return self._items(value, path)
        for name, sequence in _SEQUENCES.items():
            if kind is sequence:
                return {name: self._items(value, path)}
        raise _unstorable(value, path)

    def mapping(self, kind: str, value: Mapping[Any, Any], path: str) -> Any:
        taken = {OWN_GROUP} if not path else set()
        rows = []
        for key, item in value.items():
            if type(key) not in (str, int):
                raise CheckpointError(f"state at '{path or '/'}': the key {key!r} is neither str nor int")
            key_in_tree = key if isinstance(key, str) or abs(key) < _SMALL_INT else {"int": hex(key)}
            rows.append([key_in_tree, self.value(item, _join(path, _name(key, taken)))])
        return {kind: rows}

    def _items(self, values: Any, path: str) -> list[Any]:
        return [self.value(item, _join(path, str(i))) for i, item in enumerate(values)]

    def _tensor(self, value: torch.Tensor, path: str) -> str:
        if value.layout is not torch.strided or value.device.type == "meta" or value.is_quantized:
            raise CheckpointError(f"state at '{path}': only dense tensors with data can be stored, not {value.layout}")
        if first := self._known(identity(value), path):
            return first
        return self._add(Leaf(path, dtypes.torch_name(value.dtype), tuple(value.shape), _tensor_bytes(value)))

    def _array(self, value: Any, path: str) -> str:
        if value.dtype.hasobject or value.dtype.fields:
            raise _unstorable(value, path)
        if first := self._known((id(value),), path):
            return first
        array = np.asarray(value)
        flat = np.ascontiguousarray(array).reshape(-1)
        data = flat.view(np.uint8) if flat.nbytes else np.empty(0, np.uint8)
        return self._add(Leaf(path, dtypes.numpy_name(array.dtype), array.shape, data))

    def _bytes(self, value: bytes, path: str) -> str:
        return self._add(Leaf(path, "|u1", (len(value),), np.frombuffer(value, np.uint8)))

    def _known(self, key: tuple[Any, ...], path: str) -> str | None:
        first = self._stored.setdefault(key, path)
        if first == path:
            return None
        self.aliases[path] = first
        return first

    def _add(self, leaf: Leaf) -> str:
        self.leaves[leaf.path] = leaf
        return leaf.path


def _tensor_bytes(tensor: torch.Tensor) -> np.ndarray[Any, np.dtype[np.uint8]]:
    plain = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()
    line = plain.as_strided((plain.numel(),), (1,))  # reshape(-1) would keep the odd stride of a single element
    return line.view(torch.uint8).numpy()


def _join(path: str, name: str) -> str:
    return f"{path}/{name}" if path else name


def _name(key: str | int, taken: set[str]) -> str:
    """A name for ``key`` that HDF5 takes and that no sibling has."""
    base = text if _PLAIN.fullmatch(text := str(key)) else _escaped(text)
    name, count = base, 0
    while name in taken:
        count += 1
        name = f"{base}~{count}"
    taken.add(name)
    return name


def _escaped(text: str) -> str:
    name = text.replace("/", "%2F").replace("\0", "%00").encode("utf-8", "backslashreplace").decode()[:_MAX_NAME]
    return {"": "%", ".": "%2E"}.get(name, name)


def _unstorable(value: Any, path: str) -> CheckpointError:
    what = f"numpy {value.dtype}" if isinstance(value, np.ndarray | np.generic) else type(value).__name__
    return CheckpointError(
        f"state at '{path}': a value of type {what} cannot be stored; use tensors, numpy arrays of numbers, numbers, "
        f"strings, bytes, None, and list, tuple, set or dict of these"
    )
