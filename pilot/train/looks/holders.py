"""What a value holds, with its place there: what a look at it (:mod:`pilot.train.looks.marks`) goes into."""

from __future__ import annotations

import queue
import sys
import threading
import weakref
from collections import ChainMap, UserDict, UserList, deque
from collections.abc import Iterable
from contextlib import suppress
from contextvars import ContextVar
from functools import partial, singledispatch
from itertools import chain, islice
from types import FunctionType, GeneratorType, ModuleType
from typing import Any

import numpy as np
from torch import nn
from torch.distributions import Distribution
from torch.nn.modules.batchnorm import _NormBase

from pilot.train.script import refusal
from pilot.train.script.objects import MOST, NAMESPACES, inner, is_of_the_script, package_of
from pilot.train.script.plain_marks import PLAIN

_MOST_PARTS = 1000
_WITHOUT_OWN_CLASS = (
    *(*NAMESPACES, Distribution, threading.local),
    *(UserDict, UserList, ChainMap, weakref.WeakKeyDictionary),
)
"""Objects in which scripts keep values, without a class of their own."""
_OF_MODULES = vars(nn.Module()).keys()
Held = Iterable[tuple[str, Any]]


@singledispatch
def held_by(value: Any) -> Held:
    """What ``value`` holds, with its place there: also the variables of a function's closure and of a generator, and
    what an object has from its class until it is first changed.
    """
    return _of_any(value)


def _of_any(value: Any) -> Held:
    if package_of(type(value).__module__) == "scipy" and hasattr(value, "nnz"):  # a sparse matrix
        return _named((name, one) for name, one in vars(value).items() if isinstance(one, np.ndarray))
    if isinstance(value, _WITHOUT_OWN_CLASS):
        return _of_object(value, vars(value))
    return _of_object(value, dict(inner(value))) if is_of_the_script(type(value)) else ()


def _of_object(value: object, its: dict[str, Any]) -> Held:
    held = {name: one for name, one in vars(type(value)).items() if isinstance(one, PLAIN)} | its
    return _named(held.items())


@held_by.register(list)
@held_by.register(tuple)
@held_by.register(dict)
@held_by.register(deque)
def _of_items(value: Any) -> Held:
    return ((f"[{key!r}]", one) for key, one in inner(value))


@held_by.register
def _of_function(value: FunctionType) -> Held:
    if refusal.is_of_a_library(value.__code__.co_filename):
        return
    for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
        with suppress(ValueError):  # it has no value yet
            yield f".{name}", cell.cell_contents
    defaults = [*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values()]
    yield from ((f".defaults[{number}]", one) for number, one in enumerate(defaults))
    yield from _named(inner(value))


@held_by.register
def _of_generator(value: GeneratorType) -> Held:  # type: ignore[type-arg]  # dispatch takes a class
    frame = None if refusal.is_of_a_library(value.gi_code.co_filename) else value.gi_frame
    return _named(frame.f_locals.items() if frame else ())


@held_by.register
def _of_partial(value: partial) -> Held:  # type: ignore[type-arg]  # dispatch takes a class
    return _named((name, getattr(value, name)) for name in ("func", "args", "keywords"))


@held_by.register
def _of_context(value: ContextVar) -> Held:  # type: ignore[type-arg]  # dispatch takes a class
    return [(".get()", value.get(None))]


@held_by.register
def _of_queue(value: queue.Queue) -> Held:  # type: ignore[type-arg]  # dispatch takes a class
    return [(".queue", value.queue)]  # what it counts besides grows also if it is always emptied


@held_by.register
def _of_class(value: type) -> Held:
    return _named(vars(value).items() if is_of_the_script(value) else ())


@held_by.register
def _of_configuration(value: ModuleType) -> Held:
    is_imported = sys.modules.get(value.__name__) is value
    return () if is_imported else _named((name, one) for name, one in vars(value).items() if name[:2] != "__")


@held_by.register
def _of_array(value: np.ndarray) -> Held:
    if not value.dtype.hasobject:
        return _of_any(value)
    return ((f"[{number}]", one) for number, one in enumerate(islice(value.flat, MOST)))


@held_by.register
def _of_module(module: nn.Module) -> Held:
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
        yield from _named((f"{path}.{name}".lstrip("."), one) for name, one in held.items())


def _named(held: Iterable[tuple[Any, Any]]) -> Held:
    return [(f".{name}", one) for name, one in list(held)]
