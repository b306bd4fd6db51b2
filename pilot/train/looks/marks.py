"""What changes if a value that a script keeps does, or something that it holds: a *mark* of each of them, by its place.

So a script can be told of what it changes in its loop (:mod:`pilot.train.looks.own_values`) without a copy of it.
"""

from __future__ import annotations

import csv
import ctypes
import enum
import functools
import io
from array import array
from collections import OrderedDict, defaultdict, deque
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from multiprocessing.sharedctypes import SynchronizedBase
from types import BuiltinFunctionType, FunctionType, GeneratorType, MethodType
from typing import Any

import numpy as np
import torch
import xxhash
from torch import nn
from torch.utils.data import Dataset

from pilot.checkpoint import checksums
from pilot.train.data.training_loader import TrainingLoader
from pilot.train.looks.handed_on import is_of_a_graph
from pilot.train.looks.holders import held_by
from pilot.train.script import refusal
from pilot.train.script.iterators import place_of
from pilot.train.script.objects import MOST, WITH_ITEMS, inner, is_of_the_script
from pilot.train.script.plain_marks import PLAIN, itself, random_state
from pilot.train.script.tensor_parts import is_plain, parts_of

DEPTH = 3
_FURTHER = 3
_MOST_FURTHER = 1000
"""How much deeper a look goes into objects, and into how many values there."""
_MOST_NUMBERS = 10_000
_NUMBERS = (bool, int, float, np.floating, np.integer)
_SMALL_BYTES = 1 << 20
_SAMPLED = 1 << 14
"""A tensor or array up to this size is read whole; of a larger one, so many numbers."""
ARRAYS = (torch.Tensor, np.ndarray)
_MANY = (list, dict, set, deque)
_WITH_OTHERS = {dict, list, tuple, deque}
CHANGEABLE = (*_MANY, *ARRAYS)
_SHARED = (SynchronizedBase, ctypes._SimpleCData, ctypes.Array)
"""What processes may share."""
FUNCTIONS = (FunctionType, MethodType, BuiltinFunctionType)
_CSV = (type(csv.reader(())), csv.DictReader)


@dataclass(frozen=True)
class Shared:
    """The mark of a tensor or array that has no ``memory`` of its own, but that of what the session has; all such marks
    are equal.
    """

    memory: int = field(compare=False)


Place = tuple[int, str]
"""A frame or a module's variables (which one), and a name in it; or a tensor or array in a variable, and its name; or
one of the session's parts (0: a module) or a hook, and a name.
"""


class Further:
    """What one look goes into beyond :data:`DEPTH`: objects of the script's own classes, dicts and lists, each once for
    a variable (a trainer's callbacks have the trainer), and in all not too many; and objects of bound methods, unless
    one of the script's ``variables`` has them.
    """

    def __init__(self, variables: Iterable[object]) -> None:
        self._variables = {id(value) for value in variables}
        self._left = _MOST_FURTHER
        self._seen: set[int] = set()

    def variable(self) -> Further:
        """The same, for another variable."""
        self._seen = set()
        return self

    def holder(self, value: Any) -> Any:
        """Who has what ``value`` may change: of a bound method, its object."""
        is_bound = isinstance(value, MethodType) and is_of_the_script(type(value.__self__))
        return value.__self__ if is_bound and id(value.__self__) not in self._variables else value

    def goes_into(self, value: Any, depth: int) -> bool:
        """Whether it does so; ``depth``: see :func:`marks_in`."""
        is_new = id(value) not in self._seen
        self._seen.add(id(value))
        if depth > 1 or not is_new or depth <= 1 - _FURTHER or self._left <= 0:
            return False
        kind = type(value)
        if kind not in _WITH_OTHERS and (not is_of_the_script(kind) or isinstance(value, nn.Module)):
            return False
        self._left -= 1 + len(inner(value))
        return True


def marks_in(
    name: str,
    value: Any,
    known: set[int],
    without: Collection[Place],
    depth: int,
    further: Further | None = None,
) -> Iterator[tuple[str, Any]]:
    """What changes if ``value``, or something in it, does."""
    if isinstance(value, functools._lru_cache_wrapper):  # what it has cached may be the same whenever it is computed
        value = value.__wrapped__
    if name.startswith("__") or name == "_" or id(value) in known or isinstance(value, Dataset):
        return
    if type(value) is FunctionType and not _has_more(value):
        yield name, value.__code__
    elif value is None or isinstance(value, (*PLAIN, enum.Enum)):
        yield name, itself(value)
    elif isinstance(value, ARRAYS) and (memory := memory_of(value)) in known:
        yield name, Shared(memory)
    else:
        if (mark := mark_of(value, is_variable=depth == DEPTH)) is not None:
            yield name, mark
        holder = value if further is None else further.holder(value)
        if holder is not value and (id(holder) in known or isinstance(holder, Dataset)):
            return
        if (further is not None and further.goes_into(holder, depth)) or depth > 1:
            for path, one in held_by(holder):
                if (id(holder), path) not in without and one is not holder:  # a function that uses itself
                    # A trainer's callbacks; the transitions of a memory.
                    same_depth = isinstance(holder, WITH_ITEMS) and (type(one) is tuple or is_of_the_script(type(one)))
                    less = depth if same_depth else depth - 1
                    yield from marks_in(name + path, one, known, without, less, further)


def _has_more(function: FunctionType) -> bool:
    """Than its code. (Most of what a module has are functions: to go into each takes long.)"""
    return bool(function.__closure__ or function.__defaults__ or function.__kwdefaults__ or function.__dict__)


def mark_of(value: Any, *, is_variable: bool) -> Any:
    """Variables hold batches, too: of a tensor there only a change in place counts."""
    if isinstance(value, _MANY):
        length = len(value) - sum(is_of_a_graph(one) or _is_looked_up(value, one) for _, one in inner(value))
        if len(value) > MOST:
            return length, _numbers_beyond(value)
        return (length, _order(value)) if isinstance(value, OrderedDict) else length
    if is_of_a_graph(value):
        return None
    if isinstance(value, torch.Tensor):
        parts = [part for part in parts_of(value) if not part.is_inference()]
        return [_content(part, is_variable=is_variable) for part in parts] or None
    if isinstance(value, bytearray | array):
        return xxhash.xxh3_64_intdigest(value[:: 1 + len(value) // _SMALL_BYTES])
    if isinstance(value, _SHARED):
        return xxhash.xxh3_64_intdigest(value.get_obj() if isinstance(value, SynchronizedBase) else value)
    if isinstance(value, np.ndarray):
        return None if value.dtype.hasobject or isinstance(value, np.memmap) else _of_array(value)
    if isinstance(value, GeneratorType) and not refusal.is_of_a_library(value.gi_code.co_filename):
        return None if _loops_over_the_loader(value) else value.gi_frame and value.gi_frame.f_lasti
    if isinstance(value, nn.Module) or is_of_the_script(type(value)):
        return type(value)  # what it holds has its own marks, but before it is made there is None
    if isinstance(value, FUNCTIONS):
        return getattr(value, "__code__", value.__qualname__)
    if isinstance(value, _CSV):
        return value.line_num
    if isinstance(value, io.TextIOWrapper):
        return _place_in_text(value)
    return place_of(value) if isinstance(value, Iterator) else random_state(value)


def _is_looked_up(holder: Any, value: Any) -> bool:
    """Whether asking for it may have made it."""
    return isinstance(holder, defaultdict) and isinstance(value, _MANY) and not value


def _order(value: OrderedDict[Any, Any]) -> list[Any]:
    """Which its items do not have if they are read as those of other dicts."""
    return [key for key in OrderedDict.__iter__(value) if isinstance(key, PLAIN)]


def _numbers_beyond(value: Any) -> int | None:
    """What changes if a number does beyond those that have marks of their own."""
    items = dict.values(value) if isinstance(value, dict) else () if isinstance(value, set) else value
    beyond = list(islice(items, MOST, _MOST_NUMBERS))
    if not all(issubclass(kind, _NUMBERS) for kind in set(map(type, beyond))):
        return None
    with suppress(OverflowError):  # of integers that are too large
        return xxhash.xxh3_64_intdigest(array("d", beyond))
    return None


def _loops_over_the_loader(generator: GeneratorType[Any, Any, Any]) -> bool:
    """Then its place is the session's."""
    frame = generator.gi_frame
    return frame is not None and any(isinstance(one, TrainingLoader) for one in frame.f_locals.values())


def _content(value: torch.Tensor, *, is_variable: bool) -> Any:
    """Writes through ``.data`` or an array leave the version as it was."""
    seen = checksums.of_tensors([_sampled(value.detach(), value.numel())])
    if value.nbytes <= _SMALL_BYTES:
        return seen
    return seen, value._version, None if is_variable else value.data_ptr()


def _of_array(value: Any) -> Any:
    """Also of one with a mask."""
    masks = [value.mask] if isinstance(value, np.ma.MaskedArray) else []
    return [xxhash.xxh3_64_intdigest(_sampled(np.asarray(one), one.size).tobytes()) for one in (value, *masks)]


def _place_in_text(file: io.TextIOWrapper) -> int | None:
    """How far a file that is read has been read, in the chunks of its buffer."""
    with suppress(OSError, ValueError):  # of a pipe; it is closed
        chunks: Any = file.buffer
        return None if file.writable() else int(chunks.tell())
    return None


def _sampled(value: Any, count: int) -> Any:
    """A tensor or array, or some of its numbers, if it is large."""
    if value.nbytes <= _SMALL_BYTES:
        return value
    return value.reshape(-1)[:: -(-count // _SAMPLED)]


def memory_of(value: Any) -> int:
    """Where its numbers begin; 0: nowhere."""
    if isinstance(value, np.ndarray):
        return int(value.__array_interface__["data"][0])
    if is_plain(value):
        return int(value.data_ptr())
    return next((part.data_ptr() for part in parts_of(value)), 0)
