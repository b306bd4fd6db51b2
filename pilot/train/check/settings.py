"""What ``pilot check`` tells a process of a script that it runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

import msgspec
import torch
from torch import nn

from pilot.train.data.loader import DatasetBatches
from pilot.train.data.stream import StreamBatches

SEAT = "PILOT_CHECK"
"""The variable with a :class:`Run`, as JSON."""


class Run(msgspec.Struct, frozen=True):
    """``link``: a descriptor, the connection to the course; ``records``: the file for what this process records.

    Each of ``epochs`` has ``steps`` batches at most. ``nodes``: of how many undisturbed nodes, if a batch is per node.
    ``double``: train in float64; ``rounding``: this is the run that shows what one rounding of the initial parameters
    grows to.
    """

    link: int
    records: str
    epochs: int
    steps: int
    double: bool = False
    rounding: bool = False
    nodes: int = 2

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> Run | None:
        """None: this process is not checked."""
        return msgspec.json.decode(environment[SEAT], type=cls) if SEAT in environment else None

    def cut(self, batches: DatasetBatches | StreamBatches) -> None:
        """Make its epochs short, with a last step that is as short as without the cut."""
        batching = batches.batching
        full = batching.full((self.nodes if batching.per_node is not None else 1) * batching.ranks_per_node)
        if isinstance(batches, StreamBatches):
            batches.source = _Short(batches.source, self.steps * full)
        else:
            rest = 0 if batching.drop_last else batches.length % full
            batches.length = min(batches.length, (self.steps - (rest > 0)) * full + rest)
        if self.double:
            batches.cast = self.cast

    def cast(self, batch: Any) -> Any:
        """The batch in the type that is trained in."""
        return _doubled(batch) if self.double else batch

    def adopt(self, model: object) -> None:
        """One model or several, before their optimizers hold a state."""
        for one in model.values() if isinstance(model, dict) else [model]:
            if self.double and isinstance(one, nn.Module):
                one.double()


class _Short:
    """The first ``samples`` of ``source``, which may have ``set_epoch`` and ``from_cursor``."""

    def __init__(self, source: Any, samples: int) -> None:
        self._source, self._samples = source, samples

    def __iter__(self) -> Iterator[Any]:
        return islice(iter(self._source), self._samples)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._source, name)
        return (lambda cursor: islice(found(cursor), self._samples - cursor)) if name == "from_cursor" else found


def perturb(model: nn.Module, digits: float) -> None:
    """Change each parameter by one rounding of a type with these ``digits`` (its relative error)."""
    draw = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.is_floating_point() or parameter.is_complex():
                signs = torch.randint(0, 2, parameter.shape, generator=draw, dtype=torch.int8) * 2 - 1
                parameter.mul_(1 + digits * signs.to(parameter.device, torch.float64)).to(parameter.dtype)


def _doubled(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.double() if value.is_floating_point() else value
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_doubled(one) for one in value))
    if isinstance(value, list | tuple):
        return type(value)(_doubled(one) for one in value)
    if isinstance(value, dict):
        return {key: _doubled(one) for key, one in value.items()}
    return value
