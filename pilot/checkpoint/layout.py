"""The HDF5 structure of a file: everything in it except the bytes of the arrays.

h5py builds it in memory (a memfd), with all datasets contiguous and allocated but not written, so the file is a sparse
skeleton without the arrays. The real file is then written in one go: skeleton, array, skeleton, array. So HDF5 never
writes to the real file system, and a full disk, a quota or a broken lock cannot interrupt it half-way. A skeleton
depends only on names, types and shapes, which do not change during training, so it is built once.

It also has HDF5's element types for those of torch and numpy.
"""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

import h5py
import numpy as np
import torch
from h5py import h5d, h5p, h5s, h5t

from pilot.checkpoint import dtypes, rawio
from pilot.checkpoint.leaves import Bytes
from pilot.checkpoint.structure import FORMAT, UID, DatasetShare

_NUMERIC_KINDS = frozenset("biufc")


@cache
def hdf5_type(name: str) -> Any:
    """The HDF5 type with the same bytes as in memory.

    bfloat16 becomes a 16-bit HDF5 floating-point type, which every HDF5 reader can convert to float32. Types unknown to
    both numpy and HDF5 (float8) are opaque, tagged with their name.
    """
    if name == "torch.bfloat16":
        return _bfloat16()
    dtype = _numpy_equivalent(name)
    if dtype is None or dtype.kind not in _NUMERIC_KINDS:
        return _opaque(name)
    return h5t.py_create(dtype, logical=True)


def _numpy_equivalent(name: str) -> np.dtype[Any] | None:
    if not dtypes.is_torch(name):
        return np.dtype(name)
    try:
        return torch.empty(0, dtype=dtypes.torch_dtype(name)).numpy().dtype
    except TypeError:
        return None


def _bfloat16() -> Any:
    kind = h5t.IEEE_F32LE.copy()
    kind.set_fields(15, 7, 8, 0, 7)  # sign bit; first bit and length of the exponent; of the mantissa
    kind.set_size(2)
    kind.set_ebias(127)
    return kind


def _opaque(name: str) -> Any:
    kind = h5t.create(h5t.OPAQUE, dtypes.itemsize(name))
    kind.set_tag(name.encode())
    return kind


FORMAT_NAME = "pilot checkpoint"

TEXT = "text"
"""The type of a dataset that is a single ASCII string."""

_LIBVER = ("v108", "v110")  # metadata has its own checksums; readable by HDF5 1.10 and later
_ALIGN_BYTES = 4096


@dataclass(frozen=True, slots=True)
class DatasetSlot:
    """Space for an array: its path, element type and shape. For ``TEXT`` the shape is the length."""

    path: str
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class FileLayout:
    """The contents of a file: its own arrays, soft links (path, target), and datasets in other files.

    ``uid`` is that of the trainer whose state it is; "": none.
    """

    slots: tuple[DatasetSlot, ...]
    aliases: tuple[tuple[str, str], ...] = ()
    elsewhere: tuple[tuple[str, DatasetShare], ...] = ()
    uid: str = ""


@dataclass(frozen=True, slots=True)
class Skeleton:
    """An HDF5 file without its arrays: where each begins (0: it is empty), their order, and the bytes around them."""

    size: int
    starts: tuple[int, ...]
    order: tuple[int, ...]
    gaps: tuple[bytes, ...]


def write(fd: int, skeleton: Skeleton, arrays: Sequence[Bytes]) -> None:
    """Write the file to ``fd``, from beginning to end; ``arrays`` are in the order of the slots."""
    buffers = [memoryview(skeleton.gaps[0])]
    for slot, gap in zip(skeleton.order, skeleton.gaps[1:], strict=True):
        buffers += arrays[slot].data, memoryview(gap)
    rawio.write(fd, buffers)


@lru_cache(maxsize=2)
def skeleton(layout: FileLayout) -> Skeleton:
    """Have h5py lay out the file."""
    fd = os.memfd_create("checkpoint", os.MFD_CLOEXEC)
    with _Memory(fd, "r+b") as memory:
        places = _build(memory, layout)
        if memory.failure is not None:
            raise memory.failure
        size = os.fstat(fd).st_size
        order = sorted((slot for slot, place in enumerate(places) if place), key=lambda slot: places[slot].start)
        begins = [0, *(places[slot].stop for slot in order)]
        ends = [*(places[slot].start for slot in order), size]
        gaps = tuple(os.pread(fd, end - begin, begin) for begin, end in zip(begins, ends, strict=True))
    return Skeleton(size, tuple(place.start for place in places), tuple(order), gaps)


class _Memory(io.FileIO):
    """Stores the first ``failure`` (a size limit, no memory) instead of raising it: HDF5 continues to call methods
    after an exception, and with an exception pending Python may not even find them.
    """

    failure: OSError | None = None

    def write(self, data: bytes | memoryview) -> int:  # type: ignore[override]  # what h5py gives
        """Pretend that everything was written."""
        try:
            return super().write(data)
        except OSError as error:
            self.failure = self.failure or error.with_traceback(None)
            return memoryview(data).nbytes

    def truncate(self, size: int | None = None) -> int:
        """Pretend that it has that size."""
        try:
            return super().truncate(size)
        except OSError as error:
            self.failure = self.failure or error.with_traceback(None)
            return size or 0


def _build(memory: _Memory, layout: FileLayout) -> list[range]:
    """Build the file; returns where the bytes of each slot's array go."""
    with h5py.File(
        memory, "w", libver=_LIBVER, alignment_threshold=16 * _ALIGN_BYTES, alignment_interval=_ALIGN_BYTES
    ) as file:
        file.attrs.update({"format": FORMAT_NAME, "format_version": FORMAT})
        if layout.uid:
            file.attrs[UID] = layout.uid
        places = [_allocate(file, slot) for slot in layout.slots]
        for path, share in layout.elsewhere:
            _refer(file, path, share)
        for path, target in layout.aliases:
            file[path] = h5py.SoftLink(f"/{target}")
    return places


def _allocate(file: Any, slot: DatasetSlot) -> range:
    """Create the dataset; returns where its bytes go."""
    kind = _text(slot.shape[0]) if slot.dtype == TEXT else hdf5_type(slot.dtype)
    space = _space(() if slot.dtype == TEXT else slot.shape)
    created = h5d.create(file.id, slot.path.encode(), kind, space, _contiguous(), _parents())
    start = created.get_offset() or 0
    return range(start, start + created.get_storage_size()) if start else range(0)


def _refer(file: Any, path: str, share: DatasetShare) -> None:
    """Add an external link to a dataset in one other file, or a virtual dataset over one in several files."""
    if len(share.pieces) == 1:
        target = share.pieces[0].file.encode(), f"/{path}".encode()
        file.id.links.create_external(path.encode(), *target, lcpl=_parents())
        return
    properties = h5p.create(h5p.DATASET_CREATE)
    for piece in share.pieces:
        rows = share.piece_shape(piece)
        target = _space(share.shape)
        target.select_hyperslab((piece.start, *(0 for _ in rows[1:])), rows)
        properties.set_virtual(target, piece.file.encode(), f"/{path}".encode(), _space(rows))
    h5d.create(file.id, path.encode(), hdf5_type(share.dtype), _space(share.shape), properties, _parents())


@cache
def _contiguous() -> Any:
    properties = h5p.create(h5p.DATASET_CREATE)
    properties.set_layout(h5d.CONTIGUOUS)
    properties.set_alloc_time(h5d.ALLOC_TIME_EARLY)
    properties.set_fill_time(h5d.FILL_TIME_NEVER)
    return properties


@cache
def _parents() -> Any:
    properties = h5p.create(h5p.LINK_CREATE)
    properties.set_create_intermediate_group(True)
    properties.set_char_encoding(h5t.CSET_UTF8)
    return properties


def _text(size: int) -> Any:
    kind = h5t.C_S1.copy()
    kind.set_size(size)
    kind.set_strpad(h5t.STR_SPACEPAD)
    return kind


def _space(shape: tuple[int, ...]) -> Any:
    return h5s.create_simple(shape) if shape else h5s.create(h5s.SCALAR)
