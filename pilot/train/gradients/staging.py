"""Moves gradients between their device and the arena, and sums them over a node's processes if these have a group.

The exchange decides when buckets are sent; a staging area only moves data. The rank process always reads and writes the
arena in host memory (between separate batch jobs the network is TCP anyway).

Each bucket is one tensor on the gradients' device. When it is full, the node's processes sum it; each stages its share
of the sum (1/L of it, with L processes) in its arena, where the rank process sums it over the nodes; the shares are
copied back and gathered within the node. Without a group (one process on the node, or a sharded model) nothing is
summed or gathered here. On CPUs a share is in the arena from the beginning; without a group the bucket is.

The collectives of a node begin in bucket order on all of its processes, whatever the order in which the buckets are
filled, and they all complete, even if the group breaks meanwhile.
"""

from __future__ import annotations

import logging
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import lru_cache
from sys import getrefcount

import torch

from pilot.comm.arena import Arena, ArenaLayout
from pilot.core.errors import UserError
from pilot.train.node.node_group import NodeGroup, Work

log = logging.getLogger(__name__)

SMALL_NUMBERS = 2048
"""A tensor, or on average the tensors of a bucket, with fewer numbers than this is small."""


class Staging:
    """Moves the gradients, identified by their index, to their places in the arena and back.

    Parameters
    ----------
    parameters : plain tensors with the shapes, strides and dtypes of the gradients
    complete : the layout of the complete buckets, with the place of each gradient
    shares : this process's share of each bucket in the arena
    arena : the arena of the shares; None: they are summed on their device
    group : the node's processes; None: nothing is summed within the node
    """

    def __init__(
        self,
        parameters: Sequence[torch.Tensor],
        complete: ArenaLayout,
        shares: Sequence[torch.Tensor],
        arena: Arena | None,
        group: NodeGroup | None,
    ) -> None:
        device = parameters[0].device if parameters else torch.device("cpu")
        self._group = group
        self._shares = shares
        self._copies = None if device.type == "cpu" or arena is None else _Copies(device, arena)
        self._own = shares if device.type == "cpu" else [torch.zeros_like(share, device=device) for share in shares]
        self._flats = [own.new_zeros(len(own) * group.size) for own in self._own] if group is not None else self._own
        places = []
        self._of_bucket: list[list[int]] = [[] for _ in shares]
        for index, (slot, parameter) in enumerate(zip(complete.slots, parameters, strict=True)):
            flat = self._flats[slot.bucket]
            begin = (slot.offset - complete.parts[slot.bucket].offset) // flat.itemsize
            places.append(_place_in(flat[begin : begin + slot.count], parameter))
            self._of_bucket[slot.bucket].append(index)
        self._places = _Places(places)
        self._narrow = [
            p.dtype if p.dtype != place.dtype else None for p, place in zip(parameters, places, strict=True)
        ]
        self._side = None  # sums in the node and between nodes begin in this order, on all ranks, as NCCL demands
        if device.type != "cpu" and arena is None and group is not None:
            self._side = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]  # torch has no types here
        self._together = [
            device.type != "cpu" or flat.numel() <= SMALL_NUMBERS * len(indices)
            for flat, indices in zip(self._flats, self._of_bucket, strict=True)
        ]
        self._under_way: deque[tuple[Work | None, Callable[[], None]]] = deque()

    def begin(self) -> None:
        """Begin a step; gradients of earlier steps that are still referenced will not change."""
        self._places.renew()

    def start(self, number: int, gradients: list[torch.Tensor], weight: float) -> None:
        """Write ``weight`` times each of the gradients of bucket ``number``, the first ones of this step. For small
        tensors, one call per tensor takes longer than another pass over all.
        """
        indices = self._of_bucket[number]
        if self._together[number]:
            torch._foreach_copy_([self._places[index] for index in indices], gradients)
            if weight != 1.0:
                self._flats[number].mul_(weight)
            return
        for index, gradient in zip(indices, gradients, strict=True):
            self.add(index, gradient, weight, first=True)

    def add(self, index: int, gradient: torch.Tensor, weight: float, *, first: bool) -> None:
        """Add ``weight`` times ``gradient`` to its sum in this step; with ``first``, write it, in one pass."""
        if first:
            self._places.reset_moved(index)  # an optimizer of several may be stepped again in the same step
            place = self._places[index]
            torch.mul(gradient.to(place.dtype), _factor(weight, place.dtype), out=place)
        else:
            self._places[index].add_(gradient, alpha=weight)

    def send(self, number: int, holds: bytearray) -> None:
        """Complete bucket ``number``: write zeros where ``holds`` is 0, which means no gradient."""
        if 0 in holds:
            for index, held in zip(self._of_bucket[number], holds, strict=True):
                if not held:
                    self._places.reset_moved(index)
                    self._places[index].zero_()

    def share(self, number: int) -> torch.Tensor:
        """Return this process's share of bucket ``number``, on its device."""
        return self._own[number]

    def then(self, number: int, ring: Callable[[], None]) -> None:
        """Call ``ring`` as soon as the shares of bucket ``number`` and of all before it are where they are summed. Call
        this in bucket order.
        """
        if self._side is not None:
            self._side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self._side):
                _wait(self._reduce(number))  # the stream waits, not this thread
                ring()
            return
        self._under_way.append((self._to_arena(number), ring))
        while self._under_way and _is_over(self._under_way[0][0]):
            self._ring_next()

    def flush(self) -> None:
        """Wait until every ``ring`` has been called."""
        while self._under_way:
            self._ring_next()

    def back(self, indices: Sequence[int]) -> list[torch.Tensor]:
        """Return the sums in the arena as gradients of these parameters: views of the buckets if types agree."""
        if self._copies is not None:
            for own, share in zip(self._own, self._shares, strict=True):
                own.copy_(share, non_blocking=True)
        if self._group is not None:
            spread = [self._group.spread(own, flat) for own, flat in zip(self._own, self._flats, strict=True)]
            for work in spread:
                work.wait()
        places, narrow = self._places, self._narrow
        return [places[i] if narrow[i] is None else places[i].to(narrow[i]) for i in indices]

    def forget(self) -> None:
        """Drop the pending calls of a step that is over or void; collectives within the node still complete."""
        while self._under_way:
            _wait(self._under_way.popleft()[0])

    def _to_arena(self, number: int) -> Work | None:
        """Start to sum bucket ``number`` in the node and to copy the share into the arena; None: it is there."""
        if self._copies is None:
            return self._reduce(number)
        return self._copies.out(lambda: self._reduce(number), self._own[number], self._shares[number])

    def _reduce(self, number: int) -> Work | None:
        return self._group.reduce(self._flats[number], self._own[number]) if self._group is not None else None

    def _ring_next(self) -> None:
        work, ring = self._under_way.popleft()
        _wait(work)
        ring()


def _is_over(work: Work | None) -> bool:
    return work is None or work.is_completed()


def _wait(work: Work | None) -> None:
    if work is not None:
        work.wait()


def check_devices(parameters: Sequence[torch.Tensor]) -> None:
    """Raise :class:`UserError` if the parameters are on several devices, or on an unsupported one."""
    devices = sorted({str(parameter.device) for parameter in parameters})
    if devices not in ([], ["cpu"]) and not (len(devices) == 1 and parameters[0].is_cuda):
        raise UserError(f"the parameters are on {', '.join(devices)}: a rank trains on the CPU or on one CUDA device")


class _Places:
    """The gradients' places in the buckets: tensors with the parameters' shapes, which scripts get as ``p.grad``."""

    def __init__(self, places: Sequence[torch.Tensor]) -> None:
        self._places = list(places)
        self._unseen = [place.detach() for place in places]
        self._addresses = list(map(torch.Tensor.data_ptr, places))

    def __getitem__(self, index: int) -> torch.Tensor:
        return self._places[index]

    def renew(self) -> None:
        """Prepare the places for a step: replace those that the script has moved (``p.grad.data = ...``), and give
        tensors that the script or an optimizer still references (gradients of the last step) their own memory. In a
        plain loop, too, backward creates new gradients and does not change referenced ones.
        """
        if list(map(torch.Tensor.data_ptr, self._places)) != self._addresses:
            for index in range(len(self._places)):
                self.reset_moved(index)
        if max(map(getrefcount, self._places), default=0) <= _REFERENCES:
            return
        for index in range(len(self._places)):
            if getrefcount(self._places[index]) > _REFERENCES:
                referenced = self._places[index]
                self._places[index] = referenced.detach()
                referenced.data = referenced.clone()

    def reset_moved(self, index: int) -> None:
        """Replace the place at ``index`` by a new tensor in the bucket if the script has moved it elsewhere."""
        if self._places[index].data_ptr() != self._addresses[index]:
            self._places[index] = self._unseen[index].detach()


_REFERENCES = 2
"""References to a place that nobody else uses: by the list, and by the call of ``getrefcount``."""


def _place_in(numbers: torch.Tensor, parameter: torch.Tensor) -> torch.Tensor:
    """Return a view of ``numbers`` as a gradient of ``parameter``, with the strides that autograd would use: those of
    the parameter, on which fused optimizers rely, or contiguous ones if these have gaps.
    """
    flat = torch.view_as_complex(numbers.view(-1, 2)) if parameter.is_complex() else numbers
    is_dense = torch.empty_like(parameter, device="meta").stride() == parameter.stride()
    strides = parameter.stride() if is_dense else torch.empty(parameter.shape, device="meta").stride()
    return flat.as_strided(parameter.shape, strides)


@lru_cache(maxsize=16)
def _factor(weight: float, dtype: torch.dtype) -> torch.Tensor:
    """Return ``weight`` as a tensor, cached: creating one for each call takes longer than scaling a small gradient."""
    return torch.tensor(weight, dtype=dtype)


class _Copies:
    """Copies from a GPU: sums and copies to the pinned arena are queued on a stream while backward continues."""

    def __init__(self, device: torch.device, arena: Arena) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]  # torch has no types here
        pin(arena, device, self)

    def out(self, begin: Callable[[], Work | None], own: torch.Tensor, share: torch.Tensor) -> Work:
        """Call ``begin``, which starts the node's sum into ``own``, and queue the copy of ``own`` to ``share``. Buckets
        and shares live as long as the staging, so streams need not record them.
        """
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            _wait(begin())
            share.copy_(own, non_blocking=True)
            return _Copy(self._stream.record_event())


class _Copy:
    """The pending copy of a share into the arena; see :class:`~pilot.train.node.node_group.Work`."""

    def __init__(self, event: torch.cuda.Event) -> None:
        self._event = event

    def is_completed(self) -> bool:
        over: bool = self._event.query()  # type: ignore[no-untyped-call]  # torch has no types here
        return over

    def wait(self) -> None:
        self._event.synchronize()


def pin(arena: Arena, device: torch.device, user: object) -> None:
    """Register ``arena`` with CUDA as long as ``user`` lives, so that copies between it and ``device`` are
    asynchronous.

    The registration must end before the memory is freed: CUDA refuses other memory at the same address.
    """
    address = torch.frombuffer(arena.memory, dtype=torch.uint8).data_ptr()
    status = torch.cuda.cudart().cudaHostRegister(address, arena.size, 0)  # type: ignore[no-untyped-call]  # torch has no types here
    if int(status) == 0:
        weakref.finalize(user, _unpin, arena, address, device).atexit = False
        return
    log.warning("CUDA cannot pin %d bytes (error %d): gradients are copied slowly", arena.size, int(status))
    _forget_error(device)


def _unpin(arena: Arena, address: int, device: torch.device) -> None:
    """End the registration of ``arena``, which is an argument so that it lives until then."""
    del arena
    torch.cuda.synchronize(device)
    if int(torch.cuda.cudart().cudaHostUnregister(address)):  # type: ignore[no-untyped-call]  # torch has no types here
        _forget_error(device)


def _forget_error(device: torch.device) -> None:
    """Run a kernel that gets the reported error: otherwise the script's next kernel would."""
    with suppress(RuntimeError):
        torch.zeros(1, device=device)
