"""Shared memory of a worker and its rank process: anonymous files that disappear with their last user.

An arena has the gradients in buckets in the order in which backward fills them, then the control vector.
"""

from __future__ import annotations

import fcntl
import mmap
import os
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from pilot.comm.messages import BucketPart
from pilot.core.errors import ProtocolError

ALIGN_BYTES = 64
"""Everything in an arena starts at a multiple of this, a cache line; enough for every dtype."""


def aligned(size: int) -> int:
    """``size`` rounded up to a multiple of ``ALIGN_BYTES``."""
    return -(-size // ALIGN_BYTES) * ALIGN_BYTES


class Arena:
    """A memfd and its mapping. It has no name in ``/dev/shm`` or on a disk, so a SIGKILL leaves nothing behind.

    Parameters
    ----------
    fd : the descriptor, owned by the arena from now on
    """

    def __init__(self, fd: int) -> None:
        self.fd = fd
        try:
            self.size = os.fstat(fd).st_size
            self.memory = mmap.mmap(fd, self.size)
        except (OSError, ValueError):
            self.close_fd()
            raise

    @classmethod
    def received(cls, fd: int) -> Arena:
        """An arena made by another process; :class:`ProtocolError` if it could fail in the middle of a sum, because it
        is not memory, or because its maker could shrink it.
        """
        try:
            if fcntl.fcntl(fd, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK:
                return cls(fd)
        except (OSError, ValueError):
            raise ProtocolError("received a descriptor that is not shared memory") from None
        os.close(fd)
        raise ProtocolError("received a descriptor of memory that could be shrunk")

    @classmethod
    def of_size(cls, size: int) -> Arena:
        """A new arena of at least ``size`` bytes, all zero."""
        fd = os.memfd_create("pilot-arena", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(fd, max(aligned(size), ALIGN_BYTES))
        except OSError:
            os.close(fd)
            raise
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
        return cls(fd)

    def close_fd(self) -> None:
        """Close the descriptor; the mapping lives as long as something uses it."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


MOST_BUCKETS = 1024
"""Most buckets of one dtype: all are described in one packet to the rank process."""


@dataclass(frozen=True, slots=True)
class GradientSlot:
    """Where one gradient is: in bucket ``bucket``, ``count`` numbers from ``offset`` (bytes in the arena) on."""

    bucket: int
    offset: int
    count: int
    dtype: str


@dataclass(frozen=True, slots=True)
class ArenaLayout:
    """The arena of one model.

    ``slots`` has one entry per gradient, in the order given; ``parts`` has one per bucket, and the control vector as
    the last; ``size`` is in bytes.
    """

    slots: tuple[GradientSlot, ...]
    parts: tuple[BucketPart, ...]
    size: int

    @property
    def control(self) -> BucketPart:
        """The control vector."""
        return self.parts[-1]


def lay_out(gradients: Iterable[tuple[int, str]], bucket_bytes: int, control_count: int, wire: str = "") -> ArenaLayout:
    """Pack gradients into buckets of about ``bucket_bytes``.

    Parameters
    ----------
    gradients : (count, numpy dtype) of each, in the order in which backward computes them
    bucket_bytes : a bucket is closed when it holds at least this many bytes (more if there were too many buckets), or
        when the dtype changes
    control_count : number of float64 values in the control vector
    wire : the one of :data:`pilot.comm.narrow.WIRES` in which float32 is sent; empty: unchanged
    """
    sized = [(count, dtype, count * np.dtype(dtype).itemsize) for count, dtype in gradients]
    full = max(bucket_bytes, sum(size for _, _, size in sized) // MOST_BUCKETS)
    slots: list[GradientSlot] = []
    parts: list[BucketPart] = []
    start = end = 0
    kind = ""
    for count, dtype, size in sized:
        if end > start and (dtype != kind or end - start >= full):
            parts.append(_part(start, end, kind, wire))
            start = end
        kind = dtype
        slots.append(GradientSlot(len(parts), end, count, dtype))
        end = aligned(end + size)
    if end > start:
        parts.append(_part(start, end, kind, wire))
    control = BucketPart(end, control_count, "float64")
    return ArenaLayout(tuple(slots), (*parts, control), aligned(end + 8 * control_count))


def shares_of(layout: ArenaLayout, size: int) -> ArenaLayout:
    """The arena of one of a node's ``size`` training processes that sum among themselves, or of one with a shard of a
    model (``size`` 1): its share of each part, which is summed only with those of the same local rank; and the control
    vector. The slots are those of the complete parts.
    """
    parts: list[BucketPart] = []
    start = 0
    for part in layout.parts[:-1]:
        parts.append(BucketPart(start, -(-part.count // size), part.dtype, part.wire, per_process=True))
        start = aligned(start + parts[-1].count * np.dtype(part.dtype).itemsize)
    control = BucketPart(start, layout.control.count, layout.control.dtype)
    return ArenaLayout(layout.slots, (*parts, control), aligned(start + 8 * control.count))


def _part(start: int, end: int, dtype: str, wire: str) -> BucketPart:
    return BucketPart(start, (end - start) // np.dtype(dtype).itemsize, dtype, wire if dtype == "float32" else "")
