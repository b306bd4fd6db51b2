"""Values that models keep in attributes and that a state cannot hold as they are (dicts with tuples as keys, complex
numbers, fractions), written as others that it can.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from types import NoneType
from typing import Any

import torch

MAPPINGS = {dict, OrderedDict, Counter}
SEQUENCES = {list, tuple, torch.Size}
SETS = {set, frozenset}
WRITTEN = {complex, Decimal, Fraction}
_PLAIN = {bool, int, float, str, bytes, NoneType}
_AS = "written as"
"""The only key of a dict that stands for something else: which form it has, and what is written."""


def is_key(value: Any) -> bool:
    """Whether a dict with this key, or a set with this element, can be written."""
    kind = type(value)
    return kind in _PLAIN or kind in WRITTEN or (kind in {tuple, torch.Size, frozenset} and all(map(is_key, value)))


def packed(value: Any) -> Any:
    """The same value, for a state; tensors and arrays are not copied."""
    kind = type(value)
    if kind in WRITTEN:
        return {_AS: [kind.__name__, str(value)]}
    if kind in MAPPINGS and (_AS in value or not {type(key) for key in value} <= {str, int}):
        return kind({_AS: ["pairs", [[packed(key), packed(one)] for key, one in value.items()]]})
    if kind in MAPPINGS:
        return kind({key: packed(one) for key, one in value.items()})
    if kind in SETS and not {type(one) for one in value} <= _PLAIN:
        return {_AS: [kind.__name__, [packed(one) for one in value]]}
    return kind(packed(one) for one in value) if kind in SEQUENCES else value


def unpacked(value: Any) -> Any:
    """What :func:`packed` was given."""
    kind = type(value)
    if kind in MAPPINGS and value.keys() == {_AS}:
        form, held = value[_AS]
        if form == "pairs":
            return kind({unpacked(key): unpacked(one) for key, one in held})
        return _READ[form](held)
    if kind in MAPPINGS:
        return kind({key: unpacked(one) for key, one in value.items()})
    return kind(unpacked(one) for one in value) if kind in SEQUENCES else value


_READ: dict[str, Callable[[Any], Any]] = {
    **{kind.__name__: kind for kind in WRITTEN},
    "set": lambda held: {unpacked(one) for one in held},
    "frozenset": lambda held: frozenset(unpacked(one) for one in held),
}
