"""Where each gradient is in the arena: buckets in the order in which backward fills them, then the control vector."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from pilot.comm.arena import aligned
from pilot.comm.messages import BucketPart

MOST_BUCKETS = 1024
"""Of one dtype: all of them are described in one packet to the rank process."""


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
    wire : the kind of :mod:`pilot.comm.narrow` in which float32 is sent; empty: unchanged
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
    vector. The slots are those of the whole parts.
    """
    parts: list[BucketPart] = []
    start = 0
    for part in layout.parts[:-1]:
        parts.append(BucketPart(start, -(-part.count // size), part.dtype, part.wire, apart=True))
        start = aligned(start + parts[-1].count * np.dtype(part.dtype).itemsize)
    control = BucketPart(start, layout.control.count, layout.control.dtype)
    return ArenaLayout(layout.slots, (*parts, control), aligned(start + 8 * control.count))


def _part(start: int, end: int, dtype: str, wire: str) -> BucketPart:
    return BucketPart(start, (end - start) // np.dtype(dtype).itemsize, dtype, wire if dtype == "float32" else "")
