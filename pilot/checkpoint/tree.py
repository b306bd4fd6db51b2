"""The only serializer of states: nested containers with arrays as leaves are split into a JSON tree and a flat list of
named leaves, and reassembled with all types preserved.

The same (tree, leaves) is saved in an HDF5 file (:mod:`pilot.checkpoint.publish`) and sent between ranks as a block of
memory (:mod:`pilot.train.state.block`).

JSON values represent themselves; anything else is an object with one key that names its type (see
``docs/reference/checkpoint-format.md``)::

    {"dict": [[key, value], ...]}   {"tuple": [...]}   {"tensor": PATH}   {"array": PATH}   {"float": "nan"}
"""

from __future__ import annotations

import math
import re
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from pilot.checkpoint import dtypes, leaves, shards
from pilot.checkpoint.leaves import Leaf, Source
from pilot.core.errors import CheckpointError

OWN_GROUP = "checkpoint"
"""The group with the description of the checkpoint; it contains no leaf."""

MAX_DEPTH = 64
"""Maximum nesting of containers, far below the limits of Python's stack and of JSON readers."""

_MAPPINGS: dict[str, type] = {"dict": dict, "OrderedDict": OrderedDict, "Counter": Counter}
_SEQUENCES: dict[str, type] = {"tuple": tuple, "set": set, "frozenset": frozenset, "Size": torch.Size}
_NAMES = {kind: name for name, kind in (_MAPPINGS | _SEQUENCES).items()}
_SMALL_INT = 2**63
_MAX_NAME = 200
_MAX_KEYS_SHOWN = 8
_PLAIN = re.compile(rf"[\w-][\w.-]{{,{_MAX_NAME - 1}}}", re.ASCII)


class Unstorable(CheckpointError):
    """A value that cannot be stored. ``keys`` lead to it, ``what`` is the reason and the advice."""

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.what = what
        self.keys: list[Any] = []

    def __str__(self) -> str:
        return f"{place('state', self.keys)} {self.what}"


def place(root: str, keys: Iterable[Any]) -> str:
    """``root['a'][3]``, as in a script; an element of a set has no key (``...``)."""
    written = [f"[{'...' if key is ... else repr(key)}]" for key in keys]
    return root + "".join(written[:_MAX_KEYS_SHOWN]) + ("..." if len(written) > _MAX_KEYS_SHOWN else "")


@dataclass(frozen=True, slots=True)
class Encoded:
    """A state as tree and leaves. ``aliases`` are further paths of a leaf that occurs more than once (tied tensors)."""

    tree: Any
    leaves: list[Leaf]
    aliases: dict[str, str]


def encode(state: Mapping[str, Any] | Encoded) -> Encoded:
    """Split ``state`` into tree and leaves, unless it is already. :class:`Unstorable` names the place of a value that
    cannot be stored.

    No tensor or array is copied: the leaves are those of ``state``.
    """
    if isinstance(state, Encoded):
        return state
    encoder = _Encoder()
    tree = encoder.mapping("dict", state, "")
    return Encoded(tree, list(encoder.leaves.values()), encoder.aliases)


def decode(tree: Any, leaf: Callable[[str, str], Any]) -> Any:
    """Reassemble the state; ``leaf(kind, path)`` returns each leaf (see :func:`~pilot.checkpoint.leaves.of_kind`)."""
    if isinstance(tree, list):
        return [decode(item, leaf) for item in tree]
    if not isinstance(tree, dict):
        return tree
    ((kind, value),) = tree.items()
    if kind in _MAPPINGS:
        return _MAPPINGS[kind]({decode(key, leaf): decode(item, leaf) for key, item in value})
    if kind in _SEQUENCES:
        return _SEQUENCES[kind](decode(item, leaf) for item in value)
    return _WRITTEN_OUT[kind](value) if kind in _WRITTEN_OUT else leaf(kind, value)


def copied(value: Any) -> Any:
    """Return the containers of ``value`` with copies of all tensors and arrays: later steps do not change them."""
    copies = leaves.Ties()

    def copy(source: Source) -> Any:
        if (found := copies.of(source)) is not None:
            return found
        made = source.detach().clone() if isinstance(source, torch.Tensor) else source.copy()
        copies.note(source, made)
        return made

    return rebuilt(value, copy)


def rebuilt(value: Any, leaf: Callable[[Source], Any]) -> Any:
    """Return the containers of ``value`` with ``leaf(...)`` of each tensor and array in its place."""
    kind = type(value)
    if isinstance(value, torch.Tensor | np.ndarray):
        return leaf(value)
    if kind in _MAPPINGS.values():
        return kind({key: rebuilt(item, leaf) for key, item in value.items()})
    if kind is list or kind in _NAMES:
        return kind(rebuilt(item, leaf) for item in value)
    return bytearray(value) if kind is bytearray else value


class _Encoder:
    def __init__(self) -> None:
        self.leaves: dict[str, Leaf] = {}
        self.aliases: dict[str, str] = {}
        self._stored = leaves.Ties()
        self._depth = 0

    def value(self, value: Any, path: str) -> Any:
        kind = type(value)
        if value is None or kind is bool:
            return value
        if kind in _WRITTEN:
            return _WRITTEN[kind](value)
        if isinstance(value, torch.Tensor):
            return {"tensor": self._tensor(value, path)}
        if kind is np.ndarray:
            return {"array": self._array(value, path)}
        if isinstance(value, np.generic):
            return _numpy_scalar(value)
        if kind in (bytes, bytearray):
            return {kind.__name__: self._bytes(bytes(value), path)}
        return self._container(value, path)

    def _container(self, value: Any, path: str) -> Any:
        kind = type(value)
        if kind is list:
            return self._items(value, path)
        if kind not in _NAMES:
            raise Unstorable(f"is of type {kind.__name__}; {_advice(value)}")
        name = _NAMES[kind]
        return self.mapping(name, value, path) if name in _MAPPINGS else {name: self._items(value, path)}

    def mapping(self, kind: str, value: Mapping[Any, Any], path: str) -> Any:
        taken = {OWN_GROUP} if not path else set()
        rows = []
        for key, item in value.items():
            if type(key) not in (str, int):
                raise Unstorable(f"has the key {key!r}: keys of a state must be str or int")
            rows.append([_WRITTEN[type(key)](key), self._inside(key, item, _join(path, _name(key, taken)))])
        return {kind: rows}

    def _items(self, values: Any, path: str) -> list[Any]:
        unordered = isinstance(values, set | frozenset)
        return [self._inside(... if unordered else i, item, _join(path, str(i))) for i, item in enumerate(values)]

    def _inside(self, key: Any, value: Any, path: str) -> Any:
        self._depth += 1
        try:
            if self._depth > MAX_DEPTH:
                raise Unstorable(f"is nested more than {MAX_DEPTH} containers deep, or contains itself")
            return self.value(value, path)
        except Unstorable as error:
            error.keys.insert(0, key)
            raise
        finally:
            self._depth -= 1

    def _tensor(self, value: torch.Tensor, path: str) -> str:
        if why := shards.why_no_rows(value):
            raise Unstorable(why)
        rows, value = shards.rows_of(value), shards.local_of(value)
        if why := leaves.why_no_tensor(value):
            raise Unstorable(why)
        plain = value.detach() if value.requires_grad else value
        return self._leaf(path, dtypes.torch_name(value.dtype), plain, rows)

    def _array(self, value: np.ndarray[Any, Any], path: str) -> str:
        if why := leaves.why_no_array(value):
            raise Unstorable(why)
        return self._leaf(path, value.dtype.str, value)

    def _bytes(self, value: bytes, path: str) -> str:
        self.leaves[path] = Leaf(path, "|u1", (len(value),), np.frombuffer(value, np.uint8))
        return path

    def _leaf(self, path: str, dtype: str, source: Source, rows: shards.Rows | None = None) -> str:
        first: str | None = self._stored.of(source)
        if first is not None:
            self.aliases[path] = first
            return first
        self._stored.note(source, path)
        self.leaves[path] = Leaf(path, dtype, tuple(source.shape), source, rows)
        return path


def _text(value: str) -> Any:
    """JSON has no lone surrogates, which ``os.fsdecode`` produces for bytes that are not UTF-8."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return {"str": value.encode("utf-8", "surrogatepass").hex()}
    return value


def _integer(value: int) -> Any:
    return value if -_SMALL_INT <= value < _SMALL_INT else {"int": hex(value)}


def _float(value: float) -> Any:
    return value if math.isfinite(value) else {"float": str(value)}


def _numpy_scalar(value: np.generic) -> Any:
    if isinstance(value, np.str_):
        return {"str_": _text(str.__str__(value))}  # numpy's own conversion drops trailing NULs
    if isinstance(value, np.bytes_):
        return {"bytes_": bytes.hex(value)}
    if value.dtype.kind == "V":
        raise Unstorable(f"is of type numpy.{type(value).__name__}; {_advice(value)}")
    return {"number": [value.dtype.str, value.tobytes().hex()]}


_WRITTEN: dict[type, Callable[[Any], Any]] = {str: _text, int: _integer, float: _float}
"""Types that represent themselves in the tree if JSON can express the value."""


def _text_again(digits: str) -> str:
    return bytes.fromhex(digits).decode("utf-8", "surrogatepass")


_WRITTEN_OUT: dict[str, Callable[[Any], Any]] = {
    "int": lambda digits: int(digits, 16),
    "float": float,
    "str": _text_again,
    "str_": lambda text: np.str_(text if isinstance(text, str) else _text_again(text["str"])),
    "bytes_": lambda digits: np.bytes_(bytes.fromhex(digits)),
    "number": lambda row: np.frombuffer(bytes.fromhex(row[1]), row[0])[0],
}


def _advice(value: Any) -> str:
    """Advise what to store instead of ``value``."""
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return "only its script could recreate it: store a tuple, or a dict"
    if isinstance(value, dict):
        return "keep dict(it)"
    if callable(getattr(value, "state_dict", None)):  # a scheduler in a scheduler's attribute
        return "keep its state_dict() in its place, and load that in load_state_dict"
    return (
        "a state can hold tensors, numpy arrays of numbers, numbers, strings, bytes, None, and list, tuple, set or"
        " dict of these"
    )


def _join(path: str, name: str) -> str:
    return f"{path}/{name}" if path else name


def _name(key: str | int, taken: set[str]) -> str:
    """A name for ``key`` that HDF5 accepts and that no sibling has."""
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
