"""Sketches of gradients: a few random projections of each, by which gradients of different nodes can be compared. The
norm of the difference of two sketches is about that of the gradients' difference.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from functools import cache
from math import dist, hypot, isfinite
from operator import add

import torch
from torch import nn

from pilot.checkpoint.shards import local_of

_WIDTH = 61
"""A prime, so that the columns of a sketch do not align with those of a layer."""
LENGTH = 4
_FOLDS = 16
TOLERANCE = 0.05
"""Relative to a gradient's norm: other hardware, or another division of the samples, gives other roundings."""
Sketched = dict[str, list[float]]
"""The sketches of gradients by the names of their parameters."""


class Sketch:
    """The sketches of one step's gradients on one rank, added up over its batches; the next one has this ``weight``."""

    def __init__(self, weight: float = 0.0) -> None:
        self.weight = weight
        self._rows: dict[int, torch.Tensor] = {}

    def add(self, parameters: Sequence[nn.Parameter], gradients: Sequence[torch.Tensor | None]) -> None:
        """Add a batch's gradients; None, or a missing one at the end, was not reached by backward."""
        for parameter, gradient in zip(parameters, gradients, strict=False):
            if gradient is not None:
                self.put(parameter, gradient)

    def put(self, parameter: nn.Parameter, gradient: torch.Tensor, *, first: bool = False) -> None:
        """Add a gradient of ``parameter``; ``first``: replace what was added before, because that was zeroed."""
        row = self.weight * projected(gradient)
        before = None if first else self._rows.get(id(parameter))
        self._rows[id(parameter)] = row if before is None else before + row

    def of(self, named: Mapping[str, nn.Parameter]) -> Sketched:
        """Return the sketches of those of these parameters that have a gradient, by name."""
        held = {name: self._rows[id(one)] for name, one in named.items() if id(one) in self._rows}
        return dict(zip(held, torch.stack([row.cpu() for row in held.values()]).tolist(), strict=True)) if held else {}


def folded(sketched: Sketched) -> Sketched:
    """Return a sketch of all gradients together, whose size does not depend on the number of parameters."""
    rows: Sketched = {}
    for name, row in sketched.items():
        into = rows.setdefault(str(zlib.crc32(name.encode()) % _FOLDS), [0.0] * LENGTH)
        into[:] = map(add, into, row)
    return rows


def differing(own: Sketched, other: Sketched) -> str:
    """Return the name of the parameter whose sketches differ most; "" if all are the same up to ``TOLERANCE``."""
    zero = [0.0] * LENGTH
    names = [*own, *(name for name in other if name not in own)]
    difference = {name: dist(own.get(name, zero), other.get(name, zero)) for name in names}
    norms = [hypot(*(hypot(*row) for row in side.values())) for side in (own, other)]
    overflowed = not any(map(isfinite, norms))  # a loss scaler finds its scale so
    is_same = overflowed or hypot(*difference.values()) <= TOLERANCE * max(norms)
    return "" if is_same else max(difference, key=lambda name: difference[name])


@torch.no_grad()
def projected(gradient: torch.Tensor) -> torch.Tensor:
    """Return the sketch of ``gradient``, shape (4,), on its device, in float32 or wider."""
    numbers = local_of(gradient.detach())
    if numbers.is_complex():
        numbers = torch.view_as_real(numbers.resolve_conj())
    numbers = numbers.reshape(-1)
    end = len(numbers) // _WIDTH * _WIDTH
    exact = torch.float64 if numbers.dtype == torch.float64 else torch.float32
    sums = numbers[:end].view(-1, _WIDTH).sum(0, dtype=exact)
    sums[: len(numbers) - end] += numbers[end:]
    return sums @ _signs().to(sums)


@cache
def _signs() -> torch.Tensor:
    """Return the random signs of the projections, shape (61, 4), the same on all nodes."""
    drawn = torch.randint(0, 2, (_WIDTH, LENGTH), generator=torch.Generator().manual_seed(1))
    return drawn.double() * 2 - 1
