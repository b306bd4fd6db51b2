"""Where a script reads by itself what is trained, apart from running a layer: an attribute (``model.fc.weight``),
``model.named_parameters()`` and the like, and functions of its own that do so.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from types import CodeType, FrameType, FunctionType
from typing import Any

import torch
from torch import nn

from pilot.train.script import loop_code
from pilot.train.script.bytecode import between
from pilot.train.script.objects import attribute_of, found_in
from pilot.train.script.refusal import is_of_a_library
from pilot.train.script.statements import Statement, statements_in, without_owners

_ALL = {"parameters", "named_parameters", "get_parameter", "state_dict"}
_OF_FORM = {
    *("shape", "size", "numel", "dim", "ndim", "device", "dtype", "zeros_like", "ones_like", "empty_like", "full_like"),
    *("rand_like", "randn_like", "new_zeros", "new_ones", "new_empty", "new_full"),
}


class ParameterReads:
    """``modules``: the model, and averages of it that move; ``trained``: what is trained, by name."""

    def __init__(self, modules: Sequence[nn.Module], trained: Mapping[str, torch.Tensor]) -> None:
        self._ids = set(map(id, trained.values()))
        self._ids.update(id(parameter) for one in modules[1:] for parameter in one.parameters())
        self._leaves = {name.rpartition(".")[2] for name in trained}
        self._memory = {_memory(one) for module in modules for one in (*module.parameters(), *module.buffers())}

    def places(self, frame: FrameType, begin: int, end: int) -> Iterator[int]:
        """Where statements between two instructions of a function begin that read parameters, apart from their form."""
        for one in statements_in(between(frame.f_code, begin, end)):
            if not one.attributes & _OF_FORM and self._read_by(frame, one):
                yield one.begin

    def runs(self, frame: FrameType, begin: int, end: int) -> Iterator[int]:
        """Where statements between two instructions of a function begin that may run what is trained, or hand it on."""
        for one in statements_in(between(frame.f_code, begin, end)):
            if any(self._is_trained(value_of(frame, *path.split("."))) for path in without_owners(one.reads)):
                yield one.begin

    def has_own(self, value: Any) -> bool:
        """Whether it holds numbers besides the parameters themselves, which change with them."""
        numbers = found_in({"": value}, lambda one: isinstance(one, torch.Tensor | float))
        return any(isinstance(one, float) or _memory(one) not in self._memory for _, one in numbers)

    def _read_by(self, frame: FrameType, statement: Statement) -> bool:
        attributes = statement.attributes & (_ALL | self._leaves)
        for path in statement.reads:
            names = path.split(".")
            value = value_of(frame, *names)
            if id(value) in self._ids or (attributes and self._is_trained(value)):
                return True
            function = value if isinstance(value, FunctionType) else _method(frame, names)
            if function is not None and self._reads(function):
                return True
        return False

    def _is_trained(self, value: object) -> bool:
        return isinstance(value, nn.Module) and any(id(one) in self._ids for one in value.parameters())

    def _reads(self, function: FunctionType) -> bool:
        names = _names_in(function.__code__)
        return not is_of_a_library(function.__code__.co_filename) and bool(names & _ALL) and not names & _OF_FORM


def value_of(frame: FrameType, variable: str, *attributes: str) -> object:
    """Of a variable, or of an attribute of its; also of a part or parameter of a module."""
    value = loop_code.value_of(frame, variable)
    for name in attributes:
        kinds = ("_modules", "_parameters") if isinstance(value, nn.Module) else ()
        places = [vars(value).get(kind, {}) for kind in kinds]
        value = next((one[name] for one in places if name in one), attribute_of(value, name))
    return value


def _method(frame: FrameType, names: Sequence[str]) -> FunctionType | None:
    """Of an object in a variable."""
    *owner, name = names
    static = inspect.getattr_static(type(value_of(frame, *owner)), name, None) if owner else None
    return static if isinstance(static, FunctionType) else None


def _names_in(code: CodeType) -> set[str]:
    """Of attributes and global variables that a function reads, or those in it."""
    return set(code.co_names).union(*(_names_in(one) for one in code.co_consts if isinstance(one, CodeType)))


def _memory(value: torch.Tensor) -> int:
    plain = value.layout is torch.strided and not value.is_meta
    return value.untyped_storage().data_ptr() if plain else id(value)
