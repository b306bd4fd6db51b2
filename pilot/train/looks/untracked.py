"""Finds modules, and dicts of tensors by the model's names or parameters, that a script changes from step to step and
that the session does not know: a teacher or an average of weights that is not tracked. A node that joins would begin
with its own.

The session looks at what the script can see while it calls ``session.step``: modules in the variables of its running
functions, and in the objects, lists and dicts there.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from pilot.checkpoint import checksums
from pilot.checkpoint.shards import local_of
from pilot.core.errors import UserError
from pilot.train.looks.tracked_parts import TrackedParts
from pilot.train.script.objects import found_in, what_the_script_sees
from pilot.train.script.tensor_parts import is_plain, parts_of
from pilot.train.state.training import Training

_LOOKS = {2**power for power in range(40)}
"""The process's steps in which it looks; it compares in the next one, and in the next in which it looks."""


class Untracked:
    """Looks for one session. ``training``: what it knows."""

    def __init__(self, training: Training) -> None:
        self._training = training
        self._at: tuple[int, int] | None = None
        self._steps = 0
        self._looked = False
        self._seen: dict[str, tuple[nn.Module, list[int]]] = {}
        self._named: dict[str, tuple[dict[str, torch.Tensor], list[int]]] = {}

    def look(self) -> bool:
        """Call it when the script steps. :class:`UserError` if a module has changed since the step before. (Not if that
        was in another epoch: a script may train something of its own between them.) Returns whether it was time to
        look.
        """
        position, before = self._training.position, self._at
        at = (position.epoch, position.step)
        if at == before:
            return False
        self._at, self._steps = at, self._steps + 1
        looked, self._looked = self._looked, self._steps in _LOOKS
        if before is not None and before[0] != at[0]:
            self._seen, self._named = {}, {}
        if looked or self._looked:
            self._compare()
        if self._looked:
            seen = what_the_script_sees()
            self._seen, self._named = self._sums(seen), self._sums_by_name(seen)
        return self._looked

    def _compare(self) -> None:
        for name, (values, before) in self._named.items():
            if _sums_of(values.values()) != before:
                raise UserError(
                    "the script changes tensors with the names of the model's, or by its parameters, from step to step"
                    f" ({name}, an average?), which nodes that join would not get: keep them by name in session.state,"
                    " or call session.track for an object with state_dict and load_state_dict that has them"
                )
        for name, (module, before) in self._seen.items():
            if _sums_of(self._unknown(module)) != before:
                name, module = self._part_of(name, module)
                raise UserError(
                    f"the script changes a module that the session does not have from step to step ({name}, a"
                    f" {type(module).__name__}), so that nodes which join would have another one: call"
                    f" session.track({_label(name)!r}, {name}) before the loop"
                )

    def _sums(self, seen: Mapping[str, Any]) -> dict[str, tuple[nn.Module, list[int]]]:
        found = {name: (module, self._unknown(module)) for name, module in _modules(seen)}
        for name, (module, _) in found.items():
            self._check_statistics(name, module)
        return {name: (module, _sums_of(values)) for name, (module, values) in found.items() if values}

    def _sums_by_name(self, seen: Mapping[str, Any]) -> dict[str, tuple[dict[str, torch.Tensor], list[int]]]:
        """Dicts of tensors by the model's parameters or their names, with their shapes, which the session does not
        have.
        """
        training = self._training
        kept = {id(one) for _, one in _dicts({"user": training.user, "tracked": training.tracked})}
        kept |= TrackedParts.of(training.tracked).known
        named = training.trained.named
        its: dict[Any, torch.Tensor] = {**named, **{parameter: parameter for parameter in named.values()}}
        places = {local_of(value).data_ptr() for value in its.values()}
        found = {}
        for name, one in _dicts(seen):
            is_kept = id(one) in kept or kept.issuperset(map(id, one.values()))
            alike = not is_kept and all(key in its and _like(value, its[key]) for key, value in one.items())
            if alike and not any(value.data_ptr() in places for value in one.values()):
                found[name] = one, _sums_of(one.values())
        return found

    def _check_statistics(self, name: str, module: nn.Module) -> None:
        """:class:`UserError` if the optimizer trains ``module``, but the session does not have its batch statistics."""
        bare, known = self._training.trained.bare, {id(one) for one in self._training.model.modules()}
        if not bare or not {id(p) for p in bare.values()}.intersection(map(id, module.parameters())):
            return
        for path, one in module.named_modules():
            if isinstance(one, _NormBase) and one.running_mean is not None and id(one) not in known:
                raise UserError(
                    f"the optimizer trains {name}, a {type(module).__name__} that the session does not have, so nodes"
                    f" that join would not get the running statistics of its {type(one).__name__} ({path or name}):"
                    " pass all models to pilot.train.session, as a dict by name"
                )

    def _part_of(self, name: str, module: nn.Module) -> tuple[str, nn.Module]:
        """The smallest that has all of what the session does not have."""
        unknown = {id(value) for value in self._unknown(module)}
        for key, part in module.named_children():
            if unknown <= {id(value) for value in _values(part)}:
                return self._part_of(f"{name}[{key}]" if key.isdecimal() else f"{name}.{key}", part)
        return name, module

    def _unknown(self, module: nn.Module) -> list[torch.Tensor]:
        ours = [self._training.model, *(one for _, one in _modules(self._training.tracked))]
        known = {id(value) for one in ours for value in _values(one)}
        known |= {id(value) for value in self._training.trained.named.values()}
        return [value for value in _values(module) if id(value) not in known]


def _label(name: str) -> str:
    """``q_1`` of ``agent.q[1]``."""
    return re.sub(r"\W+", "_", name.rpartition(".")[2]).strip("_")


def _values(module: nn.Module) -> Iterator[torch.Tensor]:
    """Its parameters and buffers, apart from batch statistics, which belong to each rank."""
    for one in module.modules():
        buffers: Iterable[torch.Tensor | None] = () if isinstance(one, _NormBase) else one._buffers.values()
        yield from (value for value in (*one._parameters.values(), *buffers) if value is not None)


def _sums_of(values: Iterable[torch.Tensor]) -> list[int]:
    return checksums.of_tensors([part for one in values for part in parts_of(one)])


def _modules(values: Mapping[str, Any]) -> Iterator[tuple[str, nn.Module]]:
    return found_in(values, lambda value: isinstance(value, nn.Module))


def _dicts(values: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Of tensors."""
    return found_in(
        values, lambda value: isinstance(value, dict) and isinstance(next(iter(value.values()), None), torch.Tensor)
    )


def _like(value: Any, parameter: torch.Tensor) -> bool:
    return is_plain(value) and value.shape == parameter.shape and not value.requires_grad
