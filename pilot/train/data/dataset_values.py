"""Which numbers, tensors and arrays a dataset has in its attributes, and in those of its transforms, and in dicts."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dis import Instruction
from functools import cache
from itertools import islice
from types import CodeType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn
from torch.utils.data import ConcatDataset, Subset, TensorDataset

from pilot.checkpoint import checksums
from pilot.train.script import attribute_code
from pilot.train.script.bytecode import instructions
from pilot.train.script.objects import WITH_ITEMS, inner
from pilot.train.script.statements import is_in_place

_DEPTH = 4
_MOST = 1000
"""Of values that are looked at."""
_MOST_ITEMS = 10_000_000
_MOST_BYTES = 1 << 26
"""Longer lists and larger arrays are not looked at."""
GIVE = ("__getitem__", "__getitems__")
"""They do not run at an epoch's beginning."""
_READ = (*GIVE, "__iter__", "__next__", "__call__", "forward")
_CHANGES = re.compile("append.*|extend.*|insert|pop.*|remove|discard|add|clear|reverse|sort|rotate|setdefault|.*update")
"""Methods that change what holds others."""
NUMBERS = (bool, int, float, np.number, np.bool_)

Place = tuple[int, str]
"""The number of an object, and the name of its attribute, or of its item."""


class Value(NamedTuple):
    """Its name, from the dataset on, what differs if it does, and the class of the object that has it."""

    name: str
    mark: Any
    kind: type


def values_of(dataset: object) -> dict[Place, Value]:
    """By their places."""
    return dict(islice(_values_in(whole_of(dataset), "dataset", _DEPTH, set()), _MOST))


def _values_in(owner: object, path: str, depth: int, seen: set[int]) -> Iterator[tuple[Place, Value]]:
    seen.add(id(owner))
    has_attributes = not isinstance(owner, WITH_ITEMS)
    for key, value in held_by(owner):
        name = f"{path}.{key}" if has_attributes and type(key) is str else f"{path}[{key}]"
        is_marked = (has_attributes and type(key) is str) or isinstance(owner, dict)
        mark = _mark_of(value) if is_marked else None
        if mark is not None:
            yield (id(owner), key), Value(name, mark, type(owner))
        elif depth and id(value) not in seen and not isinstance(value, (torch.Tensor, np.ndarray, *NUMBERS)):
            yield from _values_in(value, name, depth - 1, seen)


def held_by(owner: object) -> list[tuple[Any, Any]]:
    """What a dataset, a transform or a list in one holds, by name or number."""
    if isinstance(owner, Subset):
        return [("dataset", owner.dataset)]
    if isinstance(owner, ConcatDataset):
        return list(enumerate(owner.datasets))
    if isinstance(owner, TensorDataset):
        return list(vars(owner).items())
    held = inner(owner)
    return [(key, one) for key, one in held if type(one) is not dict] if isinstance(owner, nn.Module) else held


def _mark_of(value: Any) -> Any:
    """None: it is no number, tensor or array, nor a tuple of these."""
    if isinstance(value, NUMBERS):
        return repr(value)
    if isinstance(value, torch.Tensor | np.ndarray) and (is_looked_at(value) or _is_number(value)):
        return checksums.of_value(value)
    if type(value) is tuple and value and all(isinstance(one, torch.Tensor | np.ndarray) for one in value):
        return tuple(map(_mark_of, value))
    return None


def _is_number(value: Any) -> bool:
    return value.ndim == 0 and (not isinstance(value, torch.Tensor) or value.device.type == "cpu")


def is_looked_at(value: Any) -> bool:
    """Whether it is a list or array in memory, which is not very long."""
    if type(value) is list:
        return len(value) <= _MOST_ITEMS
    if type(value) is torch.Tensor and (value.layout is not torch.strided or value.device.type != "cpu"):
        return False
    return type(value) in (np.ndarray, torch.Tensor) and value.ndim > 0 and 0 < value.nbytes <= _MOST_BYTES


def whole_of(dataset: object) -> object:
    """Of which it is a part."""
    while isinstance(dataset, Subset):
        dataset = dataset.dataset
    return dataset


@cache
def set_by_reading(kind: type) -> frozenset[str]:
    """The attributes that a dataset, or a transform, sets while it gives samples."""
    return frozenset().union(*(attribute_code.attributes_stored(instructions(code)) for code in _reading(kind)))


@cache
def changed_by_reading(kind: type) -> frozenset[str]:
    """The same, and those that it may change: what a function reads that stores into something (``self.cache[i] = x``)
    or calls what does.
    """
    codes = [code for code in _reading(kind) if any(map(_may_change, instructions(code)))]
    return set_by_reading(kind).union(*map(attribute_code.attributes_read, codes))


def _reading(kind: type) -> list[CodeType]:
    every = attribute_code.methods(kind)
    reading = [code for code in every if code.co_name in _READ]
    called = {name for code in reading for name in code.co_names}
    return [*reading, *(code for code in every if code.co_name in called)]


def _may_change(one: Instruction) -> bool:
    is_method = one.opname == "LOAD_ATTR" and (_CHANGES.fullmatch(one.argval) or is_in_place(one.argval))
    return bool(is_method) or one.opname == "STORE_SUBSCR"
