"""Moves gradients between a GPU and the arena, and between those of a node's processes if they sum among themselves.

Each bucket is one tensor on the gradients' device. When it is full, the node's processes sum it; each stages its share
of the sum (1/L of it, with L processes) in its arena, where the rank process sums it over the nodes; the shares are
copied back and gathered within the node. A process that is alone on its node, and one of a sharded model, has its
gradients to itself: nothing is summed or gathered here. On CPUs a share is in the arena from the beginning.

The collectives of a node begin in bucket order on all of its processes, whatever the order in which the buckets are
filled, and they all complete, even if the group breaks meanwhile.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

import torch

from pilot.comm.arena import Arena, ArenaLayout
from pilot.train.gradients.pinned import pin
from pilot.train.gradients.staging import Places, Ring, place_in
from pilot.train.node.node_group import NodeGroup, Work


class FlatStaging:
    """See the module, and :class:`~pilot.train.gradients.staging.Staging`.

    Parameters
    ----------
    parameters : plain tensors with the shapes, strides and dtypes of the gradients
    whole : where each gradient is in its bucket
    shares : this process's share of each bucket in the arena
    arena : the arena of the shares
    group : the node's processes; None: each process has its own gradients
    """

    def __init__(
        self,
        parameters: Sequence[torch.Tensor],
        whole: ArenaLayout,
        shares: Sequence[torch.Tensor],
        arena: Arena,
        group: NodeGroup | None,
    ) -> None:
        device = parameters[0].device
        self._group = group
        self._shares = shares
        self._own = shares if device.type == "cpu" else [torch.zeros_like(share, device=device) for share in shares]
        self._flats = [own.new_zeros(len(own) * group.size) for own in self._own] if group is not None else self._own
        places = []
        self._of_bucket: list[list[int]] = [[] for _ in shares]
        for index, (slot, parameter) in enumerate(zip(whole.slots, parameters, strict=True)):
            flat = self._flats[slot.bucket]
            begin = (slot.offset - whole.parts[slot.bucket].offset) // flat.itemsize
            places.append(place_in(flat[begin : begin + slot.count], parameter))
            self._of_bucket[slot.bucket].append(index)
        self._places = Places(places)
        self._dtypes = [parameter.dtype for parameter in parameters]
        self._copies: _Copies = _HostCopies() if device.type == "cpu" else _DeviceCopies(device, arena)
        self._under_way: deque[tuple[_Copy, Ring]] = deque()

    def begin(self) -> None:
        """See :class:`~pilot.train.gradients.staging.Staging`."""
        self._places.renew()

    def start(self, number: int, gradients: list[torch.Tensor], weight: float) -> None:
        """See :class:`~pilot.train.gradients.staging.Staging`."""
        torch._foreach_copy_([self._places[index] for index in self._of_bucket[number]], gradients)
        if weight != 1.0:
            self._flats[number].mul_(weight)

    def add(self, index: int, gradient: torch.Tensor, weight: float, *, first: bool) -> None:
        """See :class:`~pilot.train.gradients.staging.Staging`."""
        if first:
            self._places.stay(index)
            self._places[index].copy_(gradient).mul_(weight)
        else:
            self._places[index].add_(gradient, alpha=weight)

    def send(self, number: int, holds: bytearray) -> None:
        """See :class:`~pilot.train.gradients.staging.Staging`."""
        for index, held in zip(self._of_bucket[number], holds, strict=True):
            if not held:
                self._places.stay(index)
                self._places[index].zero_()

    def then(self, number: int, ring: Ring) -> None:
        """See :class:`~pilot.train.gradients.staging.Staging`."""
        self._under_way.append(
            (self._copies.out(lambda: self._reduce(number), self._own[number], self._shares[number]), ring)
        )
        while self._under_way and self._under_way[0][0].is_over():
            self._ring_next()

    def flush(self) -> None:
        """See :class:`~pilot.train.gradients.staging.Staging`."""
        while self._under_way:
            self._ring_next()

    def back(self, indices: Sequence[int]) -> list[torch.Tensor]:
        """See :class:`~pilot.train.gradients.staging.Staging`. A gradient is a view of its bucket if types agree."""
        for own, share in zip(self._own, self._shares, strict=True):
            own.copy_(share, non_blocking=True)  # does nothing if they are the same
        if self._group is not None:
            spread = [self._group.spread(own, flat) for own, flat in zip(self._own, self._flats, strict=True)]
            for work in spread:
                work.wait()
        return [self._places[i].to(self._dtypes[i]) for i in indices]

    def forget(self) -> None:
        """See :class:`~pilot.train.gradients.staging.Staging`. Collectives that have begun on all processes of the node
        complete."""
        while self._under_way:
            self._under_way.popleft()[0].finish()

    def _reduce(self, number: int) -> Work | None:
        return self._group.reduce(self._flats[number], self._own[number]) if self._group is not None else None

    def _ring_next(self) -> None:
        copy, ring = self._under_way.popleft()
        copy.finish()
        ring()


class _Copy(Protocol):
    """A share on its way into the arena."""

    def is_over(self) -> bool:
        """Whether it is complete."""

    def finish(self) -> None:
        """Wait until it is complete."""


class _Copies(Protocol):
    """How shares are copied from one kind of device."""

    def out(self, begin: Callable[[], Work | None], own: torch.Tensor, share: torch.Tensor) -> _Copy:
        """``begin`` starts the node's sum, if there is one, into ``own``, which is then copied to ``share``."""


class _HostCopies:
    """From host memory: a share is in the arena as soon as it is summed."""

    def out(self, begin: Callable[[], Work | None], own: torch.Tensor, share: torch.Tensor) -> _Copy:
        """See :class:`_Copies`."""
        del own, share
        return _HostCopy(begin())


class _HostCopy:
    def __init__(self, work: Work | None) -> None:
        self._work = work

    def is_over(self) -> bool:
        return self._work is None or self._work.is_completed()

    def finish(self) -> None:
        if self._work is not None:
            self._work.wait()


class _DeviceCopies:
    """From a GPU: the sum and the copy are queued on a separate stream while backward continues.

    The arena is pinned, so that copies need not wait for the host.
    """

    def __init__(self, device: torch.device, arena: Arena) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]  # torch has no types here
        pin(arena, device, self)

    def out(self, begin: Callable[[], Work | None], own: torch.Tensor, share: torch.Tensor) -> _Copy:
        """See :class:`_Copies`. Buckets and shares live as long as the staging, so streams need not record them."""
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            work = begin()
            if work is not None:
                work.wait()
            share.copy_(own, non_blocking=True)
            return _DeviceCopy(self._stream.record_event())


class _DeviceCopy:
    def __init__(self, event: torch.cuda.Event) -> None:
        self._event = event

    def is_over(self) -> bool:
        over: bool = self._event.query()  # type: ignore[no-untyped-call]  # torch has no types here
        return over

    def finish(self) -> None:
        self._event.synchronize()
