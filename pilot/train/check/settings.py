"""Settings of a check, and of each process in which it runs the script."""

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

VARIABLE = "PILOT_CHECK"
"""The environment variable with a :class:`CheckedRun` as JSON."""

READY = b"ready"
"""The answer of a stage whose sandbox is ready, see :mod:`pilot.train.check.program`."""
LARGEST = 1 << 20
"""Maximum size of an order, in bytes."""
LOG = "-log"
"""Suffix of the file with a rank's output."""
NODES = 2
"""The number of nodes of the undisturbed run if the batch size is per node."""
_SCALE = 256.0


class CheckSettings(msgspec.Struct, frozen=True):
    """Check ``script`` with ``arguments`` for ``epochs`` of ``steps`` each, at most until ``until_s``
    (``time.monotonic``), with files in ``folder``. ``covered``: in sandboxes.
    """

    script: str
    arguments: list[str]
    epochs: int
    steps: int
    until_s: float
    folder: str
    covered: bool


class CheckedRun(msgspec.Struct, frozen=True):
    """Settings of one process. ``link``: the descriptor of its connection to the world; ``place``: the prefix of its
    files' names. Each of ``epochs`` has at most ``steps`` batches. ``double``: train in float64; ``rounding``: perturb
    the initial parameters by one rounding, to measure the noise.
    """

    epochs: int
    steps: int
    link: int = -1
    place: str = ""
    double: bool = False
    rounding: bool = False

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> CheckedRun | None:
        """Return this process's settings; None if it is not checked."""
        return msgspec.json.decode(environment[VARIABLE], type=cls) if VARIABLE in environment else None

    def cut(self, batches: DatasetBatches | StreamBatches) -> None:
        """Shorten the epochs of ``batches``; the last step has as many samples as that of a complete epoch."""
        batching = batches.batching
        full = batching.full((NODES if batching.per_node is not None else 1) * batching.ranks_per_node)
        if isinstance(batches, StreamBatches):
            batches.source = _Short(batches.source, self.steps * full)
        else:
            rest = 0 if batching.drop_last else batches.length % full
            batches.length = min(batches.length, (self.steps - (rest > 0)) * full + rest)
        batches.cast = self.cast

    def cast(self, batch: Any) -> Any:
        """Return the batch in the type that the run trains in."""
        if not self.double:
            return batch
        return _pytree.tree_map_only(torch.Tensor, lambda one: one.double() if one.is_floating_point() else one, batch)

    def adopt(self, models: object, scalers: object) -> None:
        """Convert the models to the run's type, before their optimizers hold a state, and give loss scalers a small
        scale: with a large one, it depends on the division of samples which first steps overflow.
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
    """An iterable over the first ``samples`` of ``source``, which may have ``set_epoch`` and ``from_cursor``."""

    def __init__(self, source: Any, samples: int) -> None:
        self._source, self._samples = source, samples

    def __iter__(self) -> Iterator[Any]:
        return islice(iter(self._source), self._samples)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._source, name)
        return (lambda cursor: islice(found(cursor), self._samples - cursor)) if name == "from_cursor" else found


def perturb(model: nn.Module) -> None:
    """Change each parameter by one rounding of the coarsest type among the parameters."""
    parameters = [one for one in model.parameters() if one.is_floating_point() or one.is_complex()]
    digits = max((torch.finfo(one.dtype).eps for one in parameters), default=0.0)
    draw = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for one in parameters:
            signs = torch.randint(0, 2, one.shape, generator=draw, dtype=torch.int8) * 2 - 1
            one.mul_(1 + digits * signs.to(one.device, torch.float64))
