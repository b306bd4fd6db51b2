"""The values that must be the same on all ranks of a trainer, by name: parameters (also those of tracked modules: an
average, a teacher), the optimizers' options and state, buffers, and data that a script generates in its loop (rollouts,
pseudo-labels), if the dataset is a ``TensorDataset``. Only one rank's values are sent and saved.

A buffer, or a parameter without gradient, that the model changes while computing is each rank's own, like batch norm's
statistics. Batch norm is recognised by its class; others by their change counter, or, if a script changes ``.data``, by
changed values with an unchanged counter. A rank that notices this reports the checksum 0, and then it applies to all
ranks. A buffer that the script changes after its steps gets a negative checksum, and may differ if all ranks report it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.utils.data import TensorDataset

from pilot.checkpoint import checksums, shards
from pilot.checkpoint.tree import place
from pilot.train.state.session_checks import check_changeable
from pilot.train.state.training import Training

OWN = 0

Changes = tuple[int, int]
Numbers = dict[str, int]
Place = tuple[dict[str, Any], str]
"""The place of a tensor in a module: the dict that holds it, and its key."""


class Replicated:
    """One rank's replicated values. ``of_shards``: the names of values that are the same only for the same shard. With
    rounds, only what nodes share is the same on all.
    """

    def __init__(self, training: Training) -> None:
        self._outer = training.outer
        self._named = training.trained.named
        self._tracked = training.tracked
        optimizers = training.steppers.optimizers
        self._optimizers = {f"optimizer{name and f'[{name!r}]'}": one for name, one in optimizers.items()}
        self._frozen = dict(_frozen(training.model))
        self._buffers = dict(_buffers(training.model)) | self._frozen
        self._own: set[str] = set()
        self.of_shards: set[str] = set()
        self._before: list[Changes] = []
        self._after: list[Changes] = []
        self._changed_after: set[str] = set()
        self._seen: dict[str, tuple[Changes, int]] = {}
        self._dataset: TensorDataset | None = None
        self._data_at_first: list[Changes] = []

    def trains_on(self, dataset: object) -> None:
        """Set the dataset, before the loop. Later checks read its data only if it has changed."""
        if isinstance(dataset, TensorDataset):
            self._dataset = dataset
            self._data_at_first = self._data_changes()

    def forward_begins(self) -> None:
        """Note the change counters before the script gets a batch."""
        self._before = self._changes()
        if self._after and self._after != self._before:
            self._changed_after |= self._changed(self._after, self._before)
        if self._buffers and not self._seen:
            self._compare_buffers(self._buffer_numbers())

    def forward_ended(self) -> None:
        """Note which buffers have changed when the script is done with the batch: they are each rank's own."""
        self._after = self._changes()
        if self._before != self._after:
            self._own |= self._changed(self._before, self._after)

    def are_own(self, names: set[str]) -> None:
        """Note that these values are each rank's own, as another rank has noticed."""
        self._own |= names

    def numbers(self) -> Numbers:
        """Return the checksums by name: 1 to 65521, or ``OWN``; negative for values that change after steps."""
        if self._outer is not None:
            return self._outer.numbers()
        buffers = self._buffer_numbers()
        self._compare_buffers(buffers)
        values = dict(self._values())
        self.of_shards = {name for name, one in values.items() if torch.is_tensor(one) and shards.is_sharded(one)}
        signed = {name: -one if name in self._changed_after else one for name, one in buffers.items()}
        alike = _numbers(values) | signed | self._data_numbers()
        own = self._own - {name for name, (held, key) in self._frozen.items() if held[key].requires_grad}
        return {name: OWN if name in own else number for name, number in alike.items()}

    def _values(self) -> Iterator[tuple[str, Any]]:
        """Yield the values by name, options first: if they differ, so does everything after them."""
        for named, optimizer in self._optimizers.items():
            saved = optimizer.state_dict()["param_groups"]
            for number, (group, its) in enumerate(zip(optimizer.param_groups, saved, strict=True)):
                options = {key: value for key, value in group.items() if key in its and key != "params"}
                yield from _leaves(f"{named}.param_groups[{number}]", options)
        yield from ((name, one) for name, one in self._named.items() if name not in self._frozen)
        for named, optimizer in self._optimizers.items():
            states: Mapping[Any, Any] = optimizer.state
            for name, parameter in self._named.items():
                yield from _leaves(f"{named}.state[{name}]", states.get(parameter, {}))
        modules = ((name, one) for name, one in self._tracked.items() if isinstance(one, nn.Module))
        for tracked, module in modules:
            for path, parameter in module.named_parameters():
                yield place(f"{tracked}.state_dict()", [path]), parameter

    def _buffer_numbers(self) -> Numbers:
        return _numbers({name: held[key] for name, (held, key) in self._buffers.items()})

    def _changes(self) -> list[Changes]:
        """Return the identity and the change counter (torch's ``_version``) of each buffer."""
        tensors = [held[key] for held, key in self._buffers.values()]
        try:
            return [(id(one), one._version if one is not None else 0) for one in tensors]
        except RuntimeError:  # torch does not count their changes, and does not let anyone load a state into them
            for name, one in zip(self._buffers, tensors, strict=True):
                check_changeable(f"the model's {'parameter' if name in self._frozen else 'buffer'} {name}", one)
            raise

    def _changed(self, before: Sequence[Changes], now: Sequence[Changes]) -> set[str]:
        return {name for name, was, one in zip(self._buffers, before, now, strict=True) if was != one}

    def _data_changes(self) -> list[Changes]:
        tensors = self._dataset.tensors if self._dataset is not None else ()
        return [(id(one), 0 if one.is_inference() else one._version) for one in tensors]

    def _data_numbers(self) -> Numbers:
        names = [f"dataset.tensors[{number}]" for number in range(len(self._data_at_first))]
        if self._dataset is None or self._data_changes() == self._data_at_first:
            return dict.fromkeys(names, 1)
        return dict.fromkeys(names, 1) | _numbers(dict(zip(names, self._dataset.tensors, strict=False)))

    def _compare_buffers(self, numbers: Mapping[str, int]) -> None:
        """Note as each rank's own the buffers whose values have changed while their counters have not."""
        for name, changes in zip(self._buffers, self._changes(), strict=True):
            before = self._seen.get(name)
            if before is not None and before[0] == changes and before[1] != numbers[name]:
                self._own.add(name)
            self._seen[name] = changes, numbers[name]


def _buffers(model: nn.Module) -> Iterator[tuple[str, Place]]:
    """Yield the buffers that are part of the state, except batch statistics, with their places."""
    for path, module in model.named_modules():
        if not isinstance(module, _NormBase):
            own = module._non_persistent_buffers_set
            for key in [key for key in module._buffers.keys() if key not in own]:  # noqa: SIM118  # torch.jit's has no other
                yield f"{path}.{key}" if path else key, (module._buffers, key)


def _frozen(model: nn.Module) -> Iterator[tuple[str, Place]]:
    """Yield the parameters without gradient, except shards, with their places."""
    for path, module in model.named_modules():
        for key, parameter in module._parameters.items():
            if parameter is not None and not (parameter.requires_grad or shards.is_sharded(parameter)):
                yield f"{path}.{key}" if path else key, (module._parameters, key)


def _leaves(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _leaves(f"{name}[{key!r}]", inner)
    elif isinstance(value, list | tuple):
        for number, inner in enumerate(value):
            yield from _leaves(f"{name}[{number}]", inner)
    elif isinstance(value, torch.Tensor | int | float | str):
        yield name, value


def _numbers(values: Mapping[str, Any]) -> Numbers:
    tensors = {name: value for name, value in values.items() if isinstance(value, torch.Tensor)}
    sums = dict(zip(tensors, checksums.of_tensors(list(tensors.values())), strict=True))
    return {name: 1 + (sums[name] if name in sums else checksums.of_value(value)) for name, value in values.items()}
