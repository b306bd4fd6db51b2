"""What is checked, and what ``pilot check`` tells a process of the script that it runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

import msgspec
import torch
from torch import nn
from torch.utils import _pytree

from pilot.train.data.loader import DatasetBatches
from pilot.train.data.stream import StreamBatches

SEAT = "PILOT_CHECK"
"""The variable with a :class:`Run`, as JSON."""

READY = b"ready"
"""What a stage says, see :mod:`pilot.train.check.program`."""
LARGEST = 1 << 20
"""Bytes of an order."""
LOG = "-log"
"""How the name of the file with a rank's output ends."""
NODES = 2
"""So many train undisturbed if a batch is per node."""
_SCALE = 256.0


class Job(msgspec.Struct, frozen=True):
    """To check ``script`` with ``arguments``, for ``epochs`` of ``steps`` each, until ``until_s`` (``time.monotonic``);
    files are in ``folder``. ``covered``: in sandboxes.
    """

    script: str
    arguments: list[str]
    epochs: int
    steps: int
    until_s: float
    folder: str
    covered: bool


class Run(msgspec.Struct, frozen=True):
    """``link``: a descriptor, the connection to the course; ``place``: how the names of this process's files begin.

    Each of ``epochs`` has ``steps`` batches at most. ``double``: train in float64; ``rounding``: this is the run that
    shows what one rounding of the initial parameters grows to.
    """

    epochs: int
    steps: int
    link: int = -1
    place: str = ""
    double: bool = False
    rounding: bool = False

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> Run | None:
        """None: this process is not checked."""
        return msgspec.json.decode(environment[SEAT], type=cls) if SEAT in environment else None

    def cut(self, batches: DatasetBatches | StreamBatches) -> None:
        """Make its epochs short, with a last step that is as short as without the cut."""
        batching = batches.batching
        full = batching.full((NODES if batching.per_node is not None else 1) * batching.ranks_per_node)
        if isinstance(batches, StreamBatches):
            batches.source = _Short(batches.source, self.steps * full)
        else:
            rest = 0 if batching.drop_last else batches.length % full
            batches.length = min(batches.length, (self.steps - (rest > 0)) * full + rest)
        batches.cast = self.cast

    def cast(self, batch: Any) -> Any:
        """The batch in the type that is trained in."""
        return _pytree.tree_map_only(torch.Tensor, _doubled, batch) if self.double else batch

    def adopt(self, models: object, scalers: object) -> None:
        """One model or several, before their optimizers hold a state; and loss scalers, with a small scale: with a
        large one, which first steps overflow depends on how samples are divided.
        """
        for model in _each(models):
            if self.double and isinstance(model, nn.Module):
                model.double()
        for scaler in _each(scalers):
            if isinstance(scaler, torch.amp.GradScaler) and scaler.is_enabled():
                scaler.load_state_dict({**scaler.state_dict(), "scale": _SCALE})


def _each(given: object) -> list[object]:
    return [*given.values()] if isinstance(given, dict) else [given]


class _Short:
    """The first ``samples`` of ``source``, which may have ``set_epoch`` and ``from_cursor``."""

    def __init__(self, source: Any, samples: int) -> None:
        self._source, self._samples = source, samples

    def __iter__(self) -> Iterator[Any]:
        return islice(iter(self._source), self._samples)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._source, name)
        return (lambda cursor: islice(found(cursor), self._samples - cursor)) if name == "from_cursor" else found


def perturb(model: nn.Module) -> None:
    """Change each parameter by one rounding of the coarsest of their types."""
    parameters = [one for one in model.parameters() if one.is_floating_point() or one.is_complex()]
    digits = max((torch.finfo(one.dtype).eps for one in parameters), default=0.0)
    draw = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for one in parameters:
            signs = torch.randint(0, 2, one.shape, generator=draw, dtype=torch.int8) * 2 - 1
            one.mul_(1 + digits * signs.to(one.device, torch.float64))


def _doubled(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.double() if tensor.is_floating_point() else tensor
