"""The HDF5 side of a file: everything in it but the bytes of the arrays.

h5py builds it in memory (a memfd): all datasets contiguous and allocated but not written, so the file is a sparse
skeleton whose holes are the arrays. The skeleton is then copied into the real file and the arrays are written at their
offsets. So HDF5 never writes to the real file system: a full disk, a quota or a broken lock cannot hit it half-way.
A skeleton depends on names, types and shapes only, which stay the same while a trainer trains: it is made once.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

import h5py
import numpy as np
from h5py import h5d, h5p, h5s, h5t

from pilot.checkpoint import dtypes, rawio
from pilot.checkpoint.rawio import Bytes
from pilot.checkpoint.structure import FORMAT, Share

FORMAT_NAME = "pilot checkpoint"

TEXT = "text"
"""The type of a dataset that is one string; its bytes are ASCII."""

_LIBVER = ("v108", "v110")  # metadata with checksums of its own, readable by HDF5 1.10 and later
_ALIGN_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Slot:
    """Room for an array: its path, and its element type and shape. For ``TEXT`` the shape is the length."""

    path: str
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Layout:
    """What a file holds: arrays of its own, soft links (path, target), and datasets that lie in other files."""

    slots: tuple[Slot, ...]
    aliases: tuple[tuple[str, str], ...] = ()
    elsewhere: tuple[tuple[str, Share], ...] = ()


@dataclass(frozen=True, slots=True)
class Skeleton:
    """An HDF5 file without its arrays: (start, bytes) of what is not a hole, and where each array goes."""

    size: int
    extents: tuple[tuple[int, Bytes], ...]
    offsets: tuple[int | None, ...]


def write(fd: int, layout: Layout, arrays: Sequence[Bytes]) -> int:
    """Write the whole file to ``fd``, ``arrays`` in the order of the slots; its size in bytes."""
    skeleton = _skeleton(layout)
    os.ftruncate(fd, skeleton.size)
    for start, block in skeleton.extents:
        rawio.write_at(fd, block, start)
    for offset, array in zip(skeleton.offsets, arrays, strict=True):
        if offset is not None:
            rawio.write_at(fd, array, offset)
    return skeleton.size


@lru_cache(maxsize=2)
def _skeleton(layout: Layout) -> Skeleton:
    fd = os.memfd_create("checkpoint", os.MFD_CLOEXEC)
    with os.fdopen(fd, "r+b", buffering=0) as memory:
        with h5py.File(
            memory, "w", libver=_LIBVER, alignment_threshold=16 * _ALIGN_BYTES, alignment_interval=_ALIGN_BYTES
        ) as file:
            file.attrs.update({"format": FORMAT_NAME, "format_version": FORMAT})
            offsets = tuple(_allocate(file, slot) for slot in layout.slots)
            for path, share in layout.elsewhere:
                _refer(file, path, share)
            for path, target in layout.aliases:
                file[path] = h5py.SoftLink(f"/{target}")
        return Skeleton(os.fstat(fd).st_size, tuple(_extents(fd)), offsets)


def _allocate(file: Any, slot: Slot) -> int | None:
    """Create the dataset; its offset, None where it has no bytes."""
    kind = _text(slot.shape[0]) if slot.dtype == TEXT else dtypes.hdf5_type(slot.dtype)
    space = _space(() if slot.dtype == TEXT else slot.shape)
    created = h5d.create(file.id, slot.path.encode(), kind, space, _contiguous(), _parents())
    return created.get_offset() if created.get_storage_size() else None


def _refer(file: Any, path: str, share: Share) -> None:
    """An external link to a dataset that lies in one file, a virtual dataset over one that is spread."""
    if len(share.pieces) == 1:
        file[path] = h5py.ExternalLink(share.pieces[0].file, f"/{path}")
        return
    properties = h5p.create(h5p.DATASET_CREATE)
    for piece in share.pieces:
        rows = share.piece_shape(piece)
        target = _space(share.shape)
        target.select_hyperslab((piece.start, *(0 for _ in rows[1:])), rows)
        properties.set_virtual(target, piece.file.encode(), f"/{path}".encode(), _space(rows))
    h5d.create(file.id, path.encode(), dtypes.hdf5_type(share.dtype), _space(share.shape), properties, _parents())


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


def _extents(fd: int) -> Iterator[tuple[int, Bytes]]:
    """(start, bytes) of what is not a hole."""
    stop = 0
    with suppress(OSError):  # ENXIO: nothing but a hole follows
        while True:
            start = os.lseek(fd, stop, os.SEEK_DATA)
            stop = os.lseek(fd, start, os.SEEK_HOLE)
            yield start, np.frombuffer(os.pread(fd, stop - start, start), np.uint8)
