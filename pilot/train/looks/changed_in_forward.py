"""Tells of what modules keep of their batches, apart from batch norm: the centre of a loss (DINO), a queue of keys
(MoCo), a codebook that follows a mean (VQ-VAE). Each rank has another part of each batch.

It has changed since the look before, and the module's code says that ``forward``, or a method that this calls, sets it
from what it is given. So it is told of on a single node, too, where no other rank has anything else.
"""

from __future__ import annotations

import inspect
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import cache
from types import CodeType, FunctionType
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from pilot.train.looks.marks import mark_of
from pilot.train.script import refusal
from pilot.train.script.bytecode import between, instructions
from pilot.train.script.objects import WITH_ITEMS, package_of
from pilot.train.script.statements import (
    RETURNS,
    SIZES,
    Statement,
    added_to,
    changed_in_place,
    items_in,
    path_at,
    read_before_set,
    statements_in,
)
from pilot.train.state.module_numbers import shown
from pilot.train.state.training import Training

_SHOWN = 5
_USES = {"LOAD_ATTR": "LOAD", "STORE_ATTR": "STORE"}
_QUANTIZES = "torch.ao."
_OF_WEIGHTS = "weight_fake_quant"
"""Quantization-aware training: torch's modules that observe numbers, and where those are that observe weights."""
_TURNS = 2
"""What one batch leaves in an attribute the next one reads."""
Place = tuple[str, str]
"""A module's path, and the name of a buffer, of a parameter without gradient or of a plain attribute."""


class ChangedInForward:
    """Looks for one session. ``training``: what it knows."""

    def __init__(self, training: Training) -> None:
        self._training = training
        self._before: dict[Place, object] = {}
        self._judged = set[Place]()
        self._told = False

    def look(self, *, is_due: bool) -> None:
        """Call it in each step; ``is_due``: whether it is time to look."""
        if self._told or not is_due:
            return
        before, self._before = self._before, dict(self._marks())
        places = [place for place, one in self._before.items() if before.get(place, one) != one]
        places += [(path, name) for path, its in self._training.numbers.capture().items() for name in its]
        modules = dict(self._training.numbers.modules())
        known = {(path, name) for path, name in places if path in modules and _may_count(modules[path], name)}
        if new := known - self._judged:
            self._judged |= new
            reached = _reached(modules.values())
            given = {path: _set_from_given(reached[id(modules[path])]) for path, _ in new}
            self._tell(sorted((path, name) for path, name in new if name in given[path] and _OF_WEIGHTS not in path))

    def _marks(self) -> Iterator[tuple[Place, object]]:
        for path, module in self._training.numbers.modules():
            frozen = [(name, one) for name, one in module._parameters.items() if one is None or not one.requires_grad]
            for name, one in (*module._buffers.items(), *frozen):
                if _may_count(module, name):
                    yield (path, name), mark_of(one, is_variable=False)

    def _tell(self, places: Sequence[Place]) -> None:
        if places:
            self._told = True
            names = ", ".join(shown(*one) for one in places[:_SHOWN])
            refusal.note(
                f"forward sets {names}{', ...' if len(places) > _SHOWN else ''} by its own batch, as batch norm does:"
                " each rank has another part of each batch, so that ranks would differ, and nodes that join and runs"
                " that resume get one rank's: derive what training depends on from what is the same on all ranks"
                " (parameters, session.steps, what session.evaluate returns)"
            )


def _may_count(module: nn.Module, name: str) -> bool:
    """Whether it is none of torch's own, and no number of batches, or place in a queue."""
    if isinstance(module, _NormBase) or _is_torchs(type(module).__module__):
        return False
    value = next((its[name] for its in (module._buffers, module._parameters, vars(module)) if name in its), None)
    if isinstance(value, torch.Tensor):
        return value.is_floating_point() or value.is_complex()
    return isinstance(value, (float, np.ndarray, np.floating, *WITH_ITEMS))


def _is_torchs(module: str) -> bool:
    """Whether a class or function of this module of Python's keeps nothing of a batch (spectral norm's of weights)."""
    return package_of(module) == "torch" and not module.startswith(_QUANTIZES)


def _reached(modules: Iterable[nn.Module]) -> dict[int, list[CodeType]]:
    """By module the functions that run in a forward pass: ``forward``, and methods that these call of the module, or of
    a part of it.
    """
    found = defaultdict[int, list[CodeType]](list)
    waiting = [(one, "forward") for one in modules]
    while waiting:
        module, name = waiting.pop()
        function = inspect.getattr_static(type(module), name, None)
        function = inspect.unwrap(function) if isinstance(function, FunctionType) else None
        if function is not None and not _is_torchs(function.__module__):
            code = function.__code__
            if code not in found[id(module)]:
                found[id(module)].append(code)
                waiting += _called(module, code)
    return found


def _called(module: nn.Module, code: CodeType) -> Iterator[tuple[nn.Module, str]]:
    for path in {path for one in statements_in(instructions(code)) for path in one.reads}:
        holder, *parts = path.split(".")
        owner: Any = module if holder in code.co_varnames[:1] and parts else None
        for part in parts[:-1]:
            owner = owner._modules.get(part) if isinstance(owner, nn.Module) else None
        if isinstance(owner, nn.Module):
            yield owner, parts[-1]


def _set_from_given(codes: Sequence[CodeType]) -> set[str]:
    """The attributes of their object that methods change from what they are given; not those that are set anew."""
    found = set[str]()
    for code in [*codes] * _TURNS:
        found |= _set_by(code, frozenset(found))
    return found.difference(*map(_set_anew, codes))


@cache
def _set_by(code: CodeType, before: frozenset[str]) -> frozenset[str]:
    """``before``: the attributes that come from what methods are given."""
    count = code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & inspect.CO_VARARGS)
    own, *given = code.co_varnames[:count] or ("",)
    prefix = f"{own}."
    names, aliases = {*given, *(prefix + name for name in before)}, dict[str, set[str]]()
    items = [one for one in items_in(code) if one.is_changed]
    for one in statements_in(instructions(code)):
        attributes = {prefix + path.split(".")[1] for path in one.reads if path.startswith(prefix)}
        if all(f"{path}.".startswith(prefix) for path in one.reads):
            aliases |= dict.fromkeys(one.sets, attributes)
        if one.reads.isdisjoint(names) or _is_of_sizes(one, names):
            names -= set() if one.adds_to else one.sets
            continue
        changed = {*one.sets, *changed_in_place(one), *added_to(one)}
        changed.update(item.holder for item in items if one.begin <= item.where <= one.end)
        part = between(code, one.begin, one.end + 1)
        is_return = any(each.opname in RETURNS for each in part)  # behind one there may be the code of a ``with``
        if part[-1].opname == "POP_TOP" and not is_return and "print" not in one.reads:  # it may change what it gets
            changed |= attributes | {path for path in one.reads if path in aliases}
        names |= changed.union(*(aliases.get(path, set()) for path in changed))
    return frozenset(path.split(".")[1] for path in names if path.startswith(prefix))


@cache
def _set_anew(code: CodeType) -> frozenset[str]:
    """The attributes of its object that a method sets, and does not read before."""
    whole, own = instructions(code), code.co_varnames[:1]
    uses: list[list[tuple[str, str]]] = [[] for _ in whole]
    for number, one in enumerate(whole):
        if one.opname in _USES and (path := path_at(whole, number)) and (path[0],) == own:
            uses[number].append((_USES[one.opname] if len(path) == 2 else "LOAD", path[1]))
    stored = {name for its in uses for use, name in its if use == "STORE"}
    return frozenset(stored - read_before_set(code, whole, uses))


def _is_of_sizes(one: Statement, names: Collection[str]) -> bool:
    """Whether it only reads how many of these there are."""
    its = [path.split(".") for path in one.reads if path.partition(".")[0] in names]
    attributes = [path[1] for path in its if path[1:]]
    return SIZES.issuperset(attributes) if attributes else "len" in one.reads and not one.attributes
