"""Between where gradients are made and the arena: nothing where that is host memory, pinned copies where it is a GPU.

The exchange decides what leaves when; a staging area only moves it. The rank process reads and writes the arena in
host memory in both cases (between separate batch jobs the network is TCP anyway).
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from sys import getrefcount
from typing import Protocol

import torch
from torch import nn

from pilot.comm.arena import Arena
from pilot.core.errors import UserError

log = logging.getLogger(__name__)

Ring = Callable[[], None]


SMALL_NUMBERS = 2048
"""Of a tensor, or on average of those of a bucket."""


@dataclass(frozen=True, slots=True)
class BucketPlace:
    """``indices``: of the gradients in a bucket; ``numbers``: all of it in the arena, one-dimensional."""

    indices: Sequence[int]
    numbers: torch.Tensor


class Staging(Protocol):
    """The way of the gradients, which are known by their index, to their places in the arena and back."""

    def begin(self) -> None:
        """A step begins: who still has a gradient of an earlier one keeps it as it was."""

    def start(self, number: int, gradients: list[torch.Tensor], weight: float) -> None:
        """What is collected first in this step of bucket ``number``: ``weight`` times each of its gradients."""

    def add(self, index: int, gradient: torch.Tensor, weight: float, *, first: bool) -> None:
        """Add ``weight`` times ``gradient`` to what is collected in this step; ``first``: nothing is yet."""

    def send(self, number: int, holds: bytearray) -> None:
        """All of bucket ``number`` is collected: have it in the arena; zeros where it ``holds`` (0 or 1) nothing."""

    def then(self, ring: Ring) -> None:
        """Call ``ring`` as soon as all that was sent before is in the arena."""

    def flush(self) -> None:
        """Returns when all of those have been called."""

    def back(self, indices: Sequence[int]) -> list[torch.Tensor]:
        """What is in the arena now, as gradients of the parameters."""

    def forget(self) -> None:
        """The step is over or void: what was collected and not sent, and who was to be called, no longer counts."""


class HostStaging:
    """Gradients are collected in the arena itself.

    Parameters
    ----------
    parameters : whose gradients
    places : their places in the arena, of the parameters' shapes, in the dtype in which they are summed
    buckets : of each, its indices, and all its numbers in the arena
    """

    def __init__(
        self, parameters: Sequence[nn.Parameter], places: Sequence[torch.Tensor], buckets: Sequence[BucketPlace]
    ) -> None:
        self._narrow = [
            p.dtype if p.dtype != place.dtype else None for p, place in zip(parameters, places, strict=True)
        ]
        self._places = list(places)
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
        keep_apart(self._places)

    def start(self, number: int, gradients: list[torch.Tensor], weight: float) -> None:
        """See :class:`Staging`. Where tensors are small, a call for each takes longer than one more pass over all."""
        bucket = self._buckets[number]
        if self._together[number]:
            torch._foreach_copy_([self._places[index] for index in bucket.indices], gradients)
            bucket.numbers.mul_(_factor(weight, bucket.numbers.dtype))
            return
        for index, gradient in zip(bucket.indices, gradients, strict=True):
            self.add(index, gradient, weight, first=True)

    def add(self, index: int, gradient: torch.Tensor, weight: float, *, first: bool) -> None:
        """See :class:`Staging`. One pass: the scaling that a weighted mean needs writes the arena."""
        if first:
            place = self._places[index]
            torch.mul(gradient, _factor(weight, place.dtype), out=place)
        else:
            self._places[index].add_(gradient, alpha=weight)

    def send(self, number: int, holds: bytearray) -> None:
        """See :class:`Staging`."""
        if 0 in holds:
            for index, held in zip(self._buckets[number].indices, holds, strict=True):
                if not held:
                    self._places[index].zero_()

    def then(self, ring: Ring) -> None:
        """See :class:`Staging`."""
        ring()

    def flush(self) -> None:
        """See :class:`Staging`."""

    def back(self, indices: Sequence[int]) -> list[torch.Tensor]:
        """See :class:`Staging`. A gradient *is* the arena's memory where the dtypes agree."""
        places, narrow = self._places, self._narrow
        return [places[i] if narrow[i] is None else places[i].to(narrow[i]) for i in indices]

    def forget(self) -> None:
        """See :class:`Staging`."""


class GpuStaging:
    """Gradients are collected on their GPU, and copied on a separate stream while backward continues.

    The autograd engine runs ahead of the GPU, so few copies are over when backward returns to the script; ``flush``
    then waits for one after the other, and rings for each as it arrives.
    """

    def __init__(
        self,
        parameters: Sequence[nn.Parameter],
        places: Sequence[torch.Tensor],
        buckets: Sequence[BucketPlace],
        arena: Arena,
    ) -> None:
        self._parameters = parameters
        self._places = places
        self._buckets = buckets
        self._device = parameters[0].device
        self._stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]  # torch has no types here
        self._collected: dict[int, torch.Tensor] = {}
        self._waiting: deque[tuple[torch.cuda.Event, Ring]] = deque()
        pin(arena)

    def begin(self) -> None:
        """See :class:`Staging`. Gradients that were given back are copies."""

    def add(self, index: int, gradient: torch.Tensor, weight: float, *, first: bool) -> None:
        """See :class:`Staging`."""
        if first:
            self._collected[index] = gradient.mul_(weight)
        else:
            self._collected[index].add_(gradient, alpha=weight)

    def start(self, number: int, gradients: list[torch.Tensor], weight: float) -> None:
        """See :class:`Staging`."""
        for index, gradient in zip(self._buckets[number].indices, gradients, strict=True):
            self.add(index, gradient, weight, first=True)

    def send(self, number: int, holds: bytearray) -> None:
        """See :class:`Staging`."""
        for index, held in zip(self._buckets[number].indices, holds, strict=True):
            self._send(index, empty=not held)

    def _send(self, index: int, *, empty: bool) -> None:
        """Zeros take the same way, or they could overtake the last step's copy back."""
        place = self._places[index]
        source = torch.zeros_like(place, device=self._device) if empty else self._collected.pop(index)
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            place.copy_(source, non_blocking=True)
        source.record_stream(self._stream)

    def then(self, ring: Ring) -> None:
        """See :class:`Staging`."""
        self._waiting.append((self._stream.record_event(), ring))
        while self._waiting and self._waiting[0][0].query():  # type: ignore[no-untyped-call]  # torch has no types here
            self._waiting.popleft()[1]()

    def flush(self) -> None:
        """See :class:`Staging`."""
        while self._waiting:
            event, ring = self._waiting.popleft()
            event.synchronize()
            ring()

    def back(self, indices: Sequence[int]) -> list[torch.Tensor]:
        """See :class:`Staging`. The optimizer's work is queued behind the copy."""
        return [self._places[i].to(self._device, self._parameters[i].dtype, non_blocking=True) for i in indices]

    def forget(self) -> None:
        """See :class:`Staging`."""
        self._collected.clear()
        self._waiting.clear()


def staging(
    parameters: Sequence[nn.Parameter], places: Sequence[torch.Tensor], buckets: Sequence[BucketPlace], arena: Arena
) -> Staging:
    """What suits the device of the parameters."""
    if parameters and parameters[0].is_cuda:
        return GpuStaging(parameters, places, buckets, arena)
    return HostStaging(parameters, places, buckets)


def check_devices(parameters: Sequence[torch.Tensor]) -> None:
    """:class:`UserError` where they are on several devices, or on one of another kind."""
    devices = sorted({str(parameter.device) for parameter in parameters})
    if devices not in ([], ["cpu"]) and not (len(devices) == 1 and parameters[0].is_cuda):
        raise UserError(f"the parameters are on {', '.join(devices)}: a rank trains on the CPU or on one CUDA device")


def gradient_strides(parameter: torch.Tensor) -> tuple[int, ...]:
    """As autograd lays a gradient out: as its parameter, which fused optimizers rely on; in rows where that has
    gaps.
    """
    strides = parameter.stride()
    dense = torch.empty_like(parameter, device="meta").stride() == strides
    return strides if dense else torch.empty(parameter.shape, device="meta").stride()


def keep_apart(places: list[torch.Tensor]) -> None:
    """Where the script or an optimizer still has one of the ``places``, which was a gradient of the last step, it gets
    memory of its own: in a plain loop backward makes new gradients, and leaves those that somebody has as they are.
    """
    if max(map(getrefcount, places), default=0) <= _REFERENCES:
        return
    for index in range(len(places)):
        if getrefcount(places[index]) > _REFERENCES:
            kept = places[index]
            places[index] = kept.detach()
            kept.data = kept.clone()


_REFERENCES = 2
"""The list's, and that of the call."""


def place_in(numbers: torch.Tensor, parameter: torch.Tensor) -> torch.Tensor:
    """The gradient of ``parameter`` in the numbers that are summed."""
    flat = torch.view_as_complex(numbers.view(-1, 2)) if parameter.is_complex() else numbers
    return flat.as_strided(parameter.shape, gradient_strides(parameter))


@lru_cache(maxsize=16)
def _factor(weight: float, dtype: torch.dtype) -> torch.Tensor:
    """torch makes such a tensor of each number, at more than what it takes to scale a small gradient."""
    return torch.tensor(weight, dtype=dtype)


def pin(arena: Arena) -> None:
    """Tell CUDA of the arena, which stays for the life of the process: copies from and to it need not wait then."""
    address = torch.frombuffer(arena.memory, dtype=torch.uint8).data_ptr()
    status = torch.cuda.cudart().cudaHostRegister(address, arena.size, 0)  # type: ignore[no-untyped-call]  # torch has no types here
    if int(status) != 0:
        log.warning("CUDA cannot pin %d bytes (error %d): gradients are copied slowly", arena.size, int(status))
