"""What changes if a value that a script keeps does, or something that it holds: a *mark* of each of them, by its place.

So a script can be told of what it changes in its loop (:mod:`pilot.train.looks.own_values`) without a copy of it.
"""

from __future__ import annotations

import argparse
import csv
import ctypes
import enum
import functools
import io
import queue
import sys
import threading
import weakref
from array import array
from collections import ChainMap, UserDict, UserList, deque
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, islice
from multiprocessing.sharedctypes import SynchronizedBase
from types import BuiltinFunctionType, FunctionType, GeneratorType, MethodType, ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import torch
import xxhash
from torch import nn
from torch.distributions import Distribution
from torch.nn.modules.batchnorm import _NormBase
from torch.utils.data import Dataset

from pilot.checkpoint import checksums
from pilot.train.data.training_loader import TrainingLoader
from pilot.train.looks.handed_on import is_of_a_graph
from pilot.train.script import refusal
from pilot.train.script.iterators import place_of
from pilot.train.script.objects import MOST, WITH_ITEMS, inner, is_of_the_script, package_of
from pilot.train.script.plain_marks import PLAIN, itself, random_state
from pilot.train.script.tensor_parts import is_plain, parts_of

DEPTH = 3
_FURTHER = 3
_MOST_FURTHER = 1000
"""How much deeper a look goes into objects, and into how many values there."""
_MOST_PARTS = 1000
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
_HOLDERS = (
    *(argparse.Namespace, SimpleNamespace, Distribution, threading.local),
    *(UserDict, UserList, ChainMap, weakref.WeakKeyDictionary),
)
"""Objects in which scripts keep values, without a class of their own."""
_CSV = type(csv.reader(()))
_OF_MODULES = vars(nn.Module()).keys()


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
    if value is None or isinstance(value, (*PLAIN, enum.Enum)):
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
                if (id(holder), path) not in without:
                    # A trainer's callbacks; the transitions of a memory.
                    same_depth = isinstance(holder, WITH_ITEMS) and (type(one) is tuple or is_of_the_script(type(one)))
                    less = depth if same_depth else depth - 1
                    yield from marks_in(name + path, one, known, without, less, further)


def mark_of(value: Any, *, is_variable: bool) -> Any:
    """Variables hold batches, too: of a tensor there only a change in place counts."""
    if isinstance(value, _MANY):
        length = len(value) - sum(is_of_a_graph(one) for _, one in inner(value))
        return length if len(value) <= MOST else (length, _numbers_beyond(value))
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


def held_by(value: Any) -> Iterator[tuple[str, Any]]:
    """What ``value`` holds, with its place there: also the variables of a function's closure and of a generator, and
    what an object has from its class until it is first changed.
    """
    if isinstance(value, WITH_ITEMS):
        yield from ((f"[{key!r}]", one) for key, one in inner(value))
    elif isinstance(value, nn.Module):
        yield from ((f".{name}", one) for name, one in _of_module(value))
    elif isinstance(value, FunctionType) and not refusal.is_of_a_library(value.__code__.co_filename):
        for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
            with suppress(ValueError):  # it has no value yet
                yield f".{name}", cell.cell_contents
        defaults = [*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values()]
        yield from ((f".defaults[{number}]", one) for number, one in enumerate(defaults))
        yield from ((f".{name}", one) for name, one in inner(value))
    elif isinstance(value, ContextVar):
        yield ".get()", value.get(None)
    elif isinstance(value, queue.Queue):  # what it counts besides grows also if it is always emptied
        yield ".queue", value.queue
    elif isinstance(value, partial):
        yield from ((f".{name}", getattr(value, name)) for name in ("func", "args", "keywords"))
    elif isinstance(value, GeneratorType) and not refusal.is_of_a_library(value.gi_code.co_filename):
        yield from ((f".{name}", one) for name, one in list(value.gi_frame.f_locals.items() if value.gi_frame else ()))
    elif isinstance(value, type) and is_of_the_script(value):
        yield from ((f".{name}", one) for name, one in list(vars(value).items()))
    elif isinstance(value, ModuleType) and sys.modules.get(value.__name__) is not value:  # a configuration
        yield from ((f".{name}", one) for name, one in list(vars(value).items()) if name[:2] != "__")
    elif isinstance(value, np.ndarray) and value.dtype.hasobject:
        yield from ((f"[{number}]", one) for number, one in enumerate(islice(value.flat, MOST)))
    elif package_of(type(value).__module__) == "scipy" and hasattr(value, "nnz"):  # a sparse matrix
        yield from ((f".{name}", one) for name, one in vars(value).items() if isinstance(one, np.ndarray))
    elif is_of_the_script(type(value)) or isinstance(value, _HOLDERS):
        its = vars(value) if isinstance(value, _HOLDERS) else dict(inner(value))
        held = {name: one for name, one in vars(type(value)).items() if isinstance(one, PLAIN)} | its
        yield from ((f".{name}", one) for name, one in held.items())


def _of_module(module: nn.Module) -> Iterator[tuple[str, Any]]:
    """The tensors of all of its parts, apart from batch statistics; the attributes that the script has; and of torch's
    classes numbers, texts and flags (a loss's margin), which these do not change by themselves.
    """
    for path, part in islice(module.named_modules(), _MOST_PARTS):
        tensors = chain(part._parameters.items(), () if isinstance(part, _NormBase) else part._buffers.items())
        held = {name: one for name, one in tensors if one is not None}
        if is_of_the_script(type(part)):
            held |= {name: one for name, one in inner(part) if name not in _OF_MODULES}
        elif package_of(type(part).__module__) == "torch":
            its = vars(part).items()
            held |= {name: one for name, one in its if name not in _OF_MODULES and isinstance(one, PLAIN)}
        yield from ((f"{path}.{name}".lstrip("."), one) for name, one in held.items())
