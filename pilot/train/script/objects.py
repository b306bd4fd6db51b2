"""What a script sees, in the variables of its running functions, and what the objects there hold."""

from __future__ import annotations

import argparse
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from itertools import islice
from types import CodeType, FrameType, FunctionType, MemberDescriptorType, ModuleType, SimpleNamespace
from typing import Any

from torch import nn

from pilot.train.script.refusal import frames, is_of_a_library

_DEPTH = 3
MOST = 100
"""How deep and how far a look goes into objects, lists and dicts."""
WITH_ITEMS = (list, tuple, dict, deque)
"""What holds other values by number or key."""
NAMESPACES = (SimpleNamespace, argparse.Namespace)
"""What holds attributes that only the script knows."""
NOT_THE_SCRIPTS = {"pilot", "torch", "runpy", "threading"}
"""Packages whose functions and objects are not the script's own."""


def what_the_script_sees() -> dict[str, Any]:
    """By name; a function's variables hide those of its callers."""
    found: dict[str, Any] = {}
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if package_of(frame.f_globals.get("__name__")) not in NOT_THE_SCRIPTS:
            found = frame.f_globals | frame.f_locals | found
        frame = frame.f_back
    return found


def spaces() -> Iterator[tuple[int, dict[str, Any]]]:
    """The variables of the script's running functions, and of their modules."""
    seen = set()
    for frame in frames():
        if frame.f_locals is not frame.f_globals:
            yield id(frame), frame.f_locals
        if id(frame.f_globals) not in seen:
            seen.add(id(frame.f_globals))
            yield id(frame.f_globals), frame.f_globals


def found_in(
    values: Mapping[str, Any], wanted: Callable[[Any], bool], depth: int = _DEPTH
) -> Iterator[tuple[str, Any]]:
    """What is wanted among ``values``, and in what they hold, apart from modules."""
    for name, value in values.items():
        if wanted(value):
            yield name, value
        elif depth > 1 and not isinstance(value, nn.Module):
            yield from found_in({f"{name}.{key}": one for key, one in inner(value)}, wanted, depth - 1)


def inner(value: Any) -> list[tuple[Any, Any]]:
    """What an object, list or dict holds, by name, without computing anything; not all of what is long."""
    kind = type(value)
    for many in (list, tuple, deque):
        if issubclass(kind, many):
            return list(enumerate(islice(many.__iter__(value), MOST)))
    if issubclass(kind, dict):
        items = list(islice(dict.items(value), MOST))  # at once: another thread may change it
        return [(_name_of(key, at), one) for at, (key, one) in enumerate(items)]
    if issubclass(kind, type | ModuleType) or package_of(kind.__module__) in NOT_THE_SCRIPTS:
        return []
    held = getattr(value, "__dict__", None)
    found = list(islice(held.items(), MOST)) if type(held) is dict else []
    return [*found, *_in_slots(value)] if is_of_the_script(kind) else found


def _name_of(key: Any, number: int) -> Any:
    """A parameter's or a module's own text is long, and changes."""
    return key if isinstance(key, str | int | float | bytes) else f"{type(key).__name__} {number}"


def attribute_of(value: object, name: str) -> Any:
    """What an object itself has there, without computing anything; None: nothing."""
    held = getattr(value, "__dict__", {})
    if name in held:
        return held[name]
    slot = next((vars(kind)[name] for kind in type(value).__mro__ if name in vars(kind)), None)
    with suppress(AttributeError):  # it has no value yet
        return slot.__get__(value) if isinstance(slot, MemberDescriptorType) else None
    return None


def _in_slots(value: Any) -> Iterator[tuple[str, Any]]:
    for kind in type(value).__mro__:
        for name, slot in vars(kind).items():
            if isinstance(slot, MemberDescriptorType):
                with suppress(AttributeError):  # it has no value yet
                    yield name, slot.__get__(value)


def is_of_the_script(kind: type) -> bool:
    """Whether the script, or a module of its own, defines this class, or the attributes of its objects
    (``args.scale``).
    """
    file = _file_of(kind)
    return issubclass(kind, NAMESPACES) or (file is not None and not is_of_a_library(file))


def own_code(function: object) -> CodeType | None:
    """Of a function that is the script's own; None: it is none."""
    code = function.__code__ if isinstance(function, FunctionType) else None
    return None if code is None or is_of_a_library(code.co_filename) else code


def is_of_a_package(kind: type) -> bool:
    """Whether an installed package defines this class, which is none of torch's, numpy's or Python's own."""
    package, file = package_of(kind.__module__), _file_of(kind)
    is_known = package in NOT_THE_SCRIPTS or package == "numpy" or package in sys.stdlib_module_names
    return file is not None and is_of_a_library(file) and not is_known


def _file_of(kind: type) -> str | None:
    return getattr(sys.modules.get(kind.__module__), "__file__", None)


def package_of(name: Any) -> str:
    """The first part of a module's name."""
    return str(name).partition(".")[0]
