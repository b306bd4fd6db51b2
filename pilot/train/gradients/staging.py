"""Moves gradients between their device and the arena; in host memory they are collected in the arena itself.

The exchange decides what is sent when; a staging area only moves data. The rank process reads and writes the arena in
host memory in all cases (between separate batch jobs the network is TCP anyway). See
:mod:`pilot.train.gradients.flat_staging` for GPUs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from sys import getrefcount
from typing import Protocol

import torch
from torch import nn

from pilot.core.errors import UserError

Ring = Callable[[], None]


SMALL_NUMBERS = 2048
"""A tensor, or on average the tensors of a bucket, with fewer numbers than this is small."""


@dataclass(frozen=True, slots=True)
class BucketPlace:
    """``indices``: of the gradients in a bucket; ``numbers``: the whole bucket in the arena, one-dimensional."""

    indices: Sequence[int]
    numbers: torch.Tensor


class Staging(Protocol):
    """Moves the gradients, identified by their index, to their places in the arena and back."""

    def begin(self) -> None:
        """A step begins: gradients of earlier steps that are still referenced must not change."""

    def start(self, number: int, gradients: list[torch.Tensor], weight: float) -> None:
        """Start to collect bucket ``number`` in this step, with ``weight`` times each of its gradients."""

    def add(self, index: int, gradient: torch.Tensor, weight: float, *, first: bool) -> None:
        """Add ``weight`` times ``gradient`` to what is collected in this step; ``first``: there is nothing yet."""

    def send(self, number: int, holds: bytearray) -> None:
        """All of bucket ``number`` is collected: move it to the arena, with zeros where ``holds`` is 0 (nothing
        collected)."""

    def then(self, number: int, ring: Ring) -> None:
        """Call ``ring`` as soon as bucket ``number`` and all before it are in the arena; called in the buckets'
        order."""

    def flush(self) -> None:
        """Returns when all of these have been called."""

    def back(self, indices: Sequence[int]) -> list[torch.Tensor]:
        """The present content of the arena, as gradients of the parameters."""

    def forget(self) -> None:
        """The step is over or void: drop what was collected and not sent, and the pending calls."""


class HostStaging:
    """Gradients are collected in the arena itself.

    Parameters
    ----------
    parameters : whose gradients
    places : their places in the arena, of the parameters' shapes, in the dtype in which they are summed
    buckets : for each, its indices, and all its numbers in the arena
    """

    def __init__(
        self, parameters: Sequence[nn.Parameter], places: Sequence[torch.Tensor], buckets: Sequence[BucketPlace]
    ) -> None:
        self._narrow = [
            p.dtype if p.dtype != place.dtype else None for p, place in zip(parameters, places, strict=True)
        ]
        self._places = Places(places)
        self._buckets = buckets
        self._together = [self._are_small(bucket) for bucket in buckets]

    def _are_small(self, bucket: BucketPlace) -> bool:
        alike = all(
            self._narrow[index] is None and self._places[index].dtype == bucket.numbers.dtype
            for index in bucket.indices
        )
        return alike and bucket.numbers.numel() <= SMALL_NUMBERS * len(bucket.indices)

    def begin(self) -> None:
        """See :class:`Staging`."""
        self._places.renew()

    def start(self, number: int, gradients: list[torch.Tensor], weight: float) -> None:
        """See :class:`Staging`. For small tensors, one call per tensor takes longer than another pass over all."""
        bucket = self._buckets[number]
        if self._together[number]:
            torch._foreach_copy_([self._places[index] for index in bucket.indices], gradients)
            bucket.numbers.mul_(_factor(weight, bucket.numbers.dtype))
            return
        for index, gradient in zip(bucket.indices, gradients, strict=True):
            self.add(index, gradient, weight, first=True)

    def add(self, index: int, gradient: torch.Tensor, weight: float, *, first: bool) -> None:
        """See :class:`Staging`. In one pass: the scaling for the weighted mean writes into the arena."""
        if first:
            self._places.stay(index)  # an optimizer of several may be stepped again in the same step
            place = self._places[index]
            torch.mul(gradient.to(place.dtype), _factor(weight, place.dtype), out=place)
        else:
            self._places[index].add_(gradient, alpha=weight)

    def send(self, number: int, holds: bytearray) -> None:
        """See :class:`Staging`."""
        if 0 in holds:
            for index, held in zip(self._buckets[number].indices, holds, strict=True):
                if not held:
                    self._places.stay(index)
                    self._places[index].zero_()

    def then(self, number: int, ring: Ring) -> None:
        """See :class:`Staging`."""
        del number
        ring()

    def flush(self) -> None:
        """See :class:`Staging`."""

    def back(self, indices: Sequence[int]) -> list[torch.Tensor]:
        """See :class:`Staging`. A gradient *is* the arena's memory if the dtypes agree."""
        places, narrow = self._places, self._narrow
        return [places[i] if narrow[i] is None else places[i].to(narrow[i]) for i in indices]

    def forget(self) -> None:
        """See :class:`Staging`."""


def check_devices(parameters: Sequence[torch.Tensor]) -> None:
    """:class:`UserError` if they are on several devices, or on an unsupported one."""
    devices = sorted({str(parameter.device) for parameter in parameters})
    if devices not in ([], ["cpu"]) and not (len(devices) == 1 and parameters[0].is_cuda):
        raise UserError(f"the parameters are on {', '.join(devices)}: a rank trains on the CPU or on one CUDA device")


def gradient_strides(parameter: torch.Tensor) -> tuple[int, ...]:
    """The strides that autograd gives a gradient: those of its parameter, which fused optimizers rely on; contiguous if
    those have gaps.
    """
    strides = parameter.stride()
    dense = torch.empty_like(parameter, device="meta").stride() == strides
    return strides if dense else torch.empty(parameter.shape, device="meta").stride()


class Places:
    """The gradients' places in the arena, which scripts get as ``p.grad``.

    Parameters
    ----------
    places : of the parameters' shapes
    """

    def __init__(self, places: Sequence[torch.Tensor]) -> None:
        self._places = list(places)
        self._unseen = [place.detach() for place in places]
        self._addresses = list(map(torch.Tensor.data_ptr, places))

    def __getitem__(self, index: int) -> torch.Tensor:
        return self._places[index]

    def renew(self) -> None:
        """Before a step. If the script has moved one elsewhere (``p.grad.data = ...``), there is another tensor in its
        place. If the script or an optimizer still references one (a gradient of the last step), give that its own
        memory: in a plain loop backward creates new gradients, and does not change referenced ones.
        """
        if list(map(torch.Tensor.data_ptr, self._places)) != self._addresses:
            for index in range(len(self._places)):
                self.stay(index)
        if max(map(getrefcount, self._places), default=0) <= _REFERENCES:
            return
        for index in range(len(self._places)):
            if getrefcount(self._places[index]) > _REFERENCES:
                kept = self._places[index]
                self._places[index] = kept.detach()
                kept.data = kept.clone()

    def stay(self, index: int) -> None:
        """If the script has moved this one elsewhere, there is another tensor in its place."""
        if self._places[index].data_ptr() != self._addresses[index]:
            self._places[index] = self._unseen[index].detach()


_REFERENCES = 2
"""The references by the list and by the call."""


def place_in(numbers: torch.Tensor, parameter: torch.Tensor) -> torch.Tensor:
    """A view of the summed ``numbers`` as the gradient of ``parameter``."""
    flat = torch.view_as_complex(numbers.view(-1, 2)) if parameter.is_complex() else numbers
    return flat.as_strided(parameter.shape, gradient_strides(parameter))


@lru_cache(maxsize=16)
def _factor(weight: float, dtype: torch.dtype) -> torch.Tensor:
    """``weight`` as a tensor: torch would create one for each call, which takes longer than scaling a small
    gradient."""
    return torch.tensor(weight, dtype=dtype)
