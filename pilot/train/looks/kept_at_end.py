"""Where a script keeps, at an epoch's end, what its steps compute with: a value of ``session.state`` that they read, a
buffer or parameter, or a tracked object.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import FrameType, FunctionType
from typing import Any

import torch
from torch import nn

from pilot.train.script import loop_code
from pilot.train.script.bytecode import instructions
from pilot.train.script.objects import is_of_the_script, own_code
from pilot.train.script.statements import ADDS, Statement, is_in_place, statements_in
from pilot.train.script.step_uses import RunningStatement, StepUses, parts_between
from pilot.train.state.training import Training

_OF_STATES = {"__init__", "state_dict", "load_state_dict"}
_OF_MODULES = ("_parameters", "_buffers", "_modules")


class KeptAtEnd:
    """``training``: what the session knows."""

    def __init__(self, training: Training) -> None:
        self._training = training

    def by(self, frame: FrameType, begin: int, end: int, names: set[str], uses: StepUses) -> str:
        """Where statements between two instructions keep what they compute from variables of these ``names``; empty:
        nowhere.
        """
        for part in parts_between(frame, begin, end, None, self._training.user):
            if part.statement.reads & names:
                keys = self._keys(part) & uses.keys
                if keys:
                    return f"session.state[{min(keys)!r}]"
                if path := next(self._changed(part, uses), ""):
                    return path
        return ""

    def _keys(self, part: RunningStatement) -> set[str]:
        """Those that it changes, also by another name of a list, a dict or a tensor."""
        user = self._training.user
        changed = {path for path, method in _calls(part) if method in ADDS or is_in_place(method)}
        changed |= part.filled
        values = [loop_code.value_of(part.frame, *path.split(".")) for path in changed]
        return part.keys_changed | {
            key for key, kept in user.items() if any(value is kept and value is not None for value in values)
        }

    def _changed(self, part: RunningStatement, uses: StepUses) -> Iterator[str]:
        """Paths of buffers and parameters, and of models and tracked objects."""
        for path, method in _calls(part):
            value = _held(part.frame, path)
            if is_in_place(method) and self._is_tensor_read(part.frame, path, uses):
                yield path
            elif self._is_used(value, uses) and _reads(value, _changed_by(value, method), uses, method):
                yield f"{path}.{method}"
        stored = {path for path in part.statement.sets if isinstance(_held(part.frame, path), loop_code.NUMBERS)}
        for path in part.filled | {path for path in stored if "." in path}:
            owner, _, name = path.rpartition(".")
            its = _held(part.frame, owner)
            is_attribute = path in stored and self._is_used(its, uses) and _reads(its, {name}, uses)
            if is_attribute or (path not in stored and self._is_tensor_read(part.frame, path, uses)):
                yield path

    def _is_tensor_read(self, frame: FrameType, path: str, uses: StepUses) -> bool:
        """Whether it is a buffer or parameter, which its module or the steps read."""
        value, (owner, _, name) = _held(frame, path), path.rpartition(".")
        is_ours = any(value is tensor for module in self._modules() for tensor in _tensors(module))
        return is_ours and (not owner or _reads(_held(frame, owner), {name}, uses))

    def _modules(self) -> Iterator[nn.Module]:
        for one in (self._training.model, *self._training.tracked.values()):
            if isinstance(one, nn.Module):
                yield from one.modules()

    def _is_used(self, value: object, uses: StepUses) -> bool:
        """Whether it is a model or tracked object, and the steps compute with it."""
        ours = any(value is one for one in (*self._modules(), *self._training.tracked.values()))
        return ours and any(value is one for frame, path in uses.paths() for one in _on_way(frame, path))


def _tensors(module: nn.Module) -> Iterator[torch.Tensor]:
    held = (*module._parameters.values(), *module._buffers.values())
    yield from (tensor for tensor in held if tensor is not None)


def _calls(part: RunningStatement) -> list[tuple[str, str]]:
    """The methods of what variables hold, and attributes of objects in them, that it may call."""
    split = (path.rpartition(".") for path in part.statement.reads)
    return [(owner, method) for owner, _, method in split if owner]


def _held(frame: FrameType, path: str) -> Any:
    """Of a variable, or an attribute of its, also what a module has."""
    variable, *names = path.split(".")
    value = loop_code.value_of(frame, variable)
    for name in names:
        held = getattr(value, "__dict__", {})
        kinds = [held, *(held.get(kind, {}) for kind in _OF_MODULES)] if isinstance(value, nn.Module) else [held]
        value = next((one[name] for one in kinds if name in one), None)
    return value


def _changed_by(value: object, method: str) -> set[str]:
    """The attributes of an object that a method of a class of the script's changes, and others."""
    code = own_code(getattr(type(value), method, None))
    statements = [one for one in statements_in(instructions(code)) if _changes_something(one)] if code else []
    stored = {name.rpartition(".")[2] for one in statements for name in one.sets if "." in name}
    return stored.union(*(one.attributes for one in statements if not one.sets or one.stores))


def _changes_something(one: Statement) -> bool:
    is_in_object = one.stores or any("." in name for name in one.sets)
    return is_in_object or any(name in ADDS or is_in_place(name) for name in one.attributes)


def _reads(owner: object, names: set[str], uses: StepUses, without: str = "") -> bool:
    """Whether other methods of an object's class, which a library's may do, or the steps read one of these
    attributes.
    """
    held = [item for base in type(owner).__mro__ for item in vars(base).items() if is_of_the_script(base)]
    own = [one for name, one in held if isinstance(one, FunctionType) and name not in {*_OF_STATES, without}]
    return (
        (bool(names) and not is_of_the_script(type(owner)))
        or any(names.intersection(one.attributes) for code in own for one in statements_in(instructions(code.__code__)))
        or any(names & part.statement.attributes for part in uses.parts)
    )


def _on_way(frame: FrameType, path: str) -> list[object]:
    """What a variable holds, and the objects from there to an attribute."""
    names = path.split(".")
    return [_held(frame, ".".join(names[:end])) for end in range(1, len(names) + 1)]
