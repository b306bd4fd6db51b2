"""The HDF5 side of a file: everything in it but the bytes of the arrays.

h5py builds it in memory (a memfd): all datasets contiguous and allocated but not written, so the file is a sparse
skeleton whose holes are the arrays. The skeleton is then copied into the real file and the arrays are written at their
offsets. So HDF5 never writes to the real file system: a full disk, a quota or a broken lock cannot hit it half-way.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import h5py
import numpy as np
from h5py import h5a, h5d, h5p, h5s, h5t

from pilot.checkpoint import dtypes, rawio
from pilot.checkpoint.rawio import Bytes
from pilot.checkpoint.structure import Share

DIGEST = "xxh3_128"
"""The attribute of each dataset that holds the checksum of its bytes."""

TEXT = "text"
"""The type of a dataset that is one string; its bytes are UTF-8."""

_LIBVER = ("v108", "v110")  # metadata with checksums of its own, readable by HDF5 1.10 and later
_ALIGN_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Dataset:
    """An array to be laid out in the file."""

    path: str
    dtype: str
    shape: tuple[int, ...]
    data: Bytes
    digest: str


@dataclass(frozen=True, slots=True)
class Contents:
    """What a file shall hold beside its attributes: datasets of its own, soft links, and datasets in other files."""

    datasets: Sequence[Dataset]
    aliases: Mapping[str, str] = field(default_factory=dict)
    elsewhere: Mapping[str, Share] = field(default_factory=dict)


def dataset(path: str, dtype: str, shape: tuple[int, ...], data: Bytes) -> Dataset:
    """The dataset with its checksum."""
    return Dataset(path, dtype, shape, data, rawio.digest(data))


def write(fd: int, contents: Contents, attributes: Mapping[str, int | str]) -> int:
    """Write the whole file to ``fd``; its size in bytes."""
    skeleton = os.memfd_create("checkpoint", os.MFD_CLOEXEC)
    with os.fdopen(skeleton, "r+b", buffering=0) as memory:
        offsets = _build(memory, contents, attributes)
        size = _copy(skeleton, fd)
    for array, offset in zip(contents.datasets, offsets, strict=True):
        if offset is not None:
            rawio.write_at(fd, array.data, offset)
    return size


def _build(memory: Any, contents: Contents, attributes: Mapping[str, int | str]) -> list[int | None]:
    with h5py.File(
        memory, "w", libver=_LIBVER, alignment_threshold=16 * _ALIGN_BYTES, alignment_interval=_ALIGN_BYTES
    ) as file:
        file.attrs.update(attributes)
        offsets = [_allocate(file, array) for array in contents.datasets]
        for path, share in contents.elsewhere.items():
            _refer(file, path, share)
        for path, first in contents.aliases.items():
            file[path] = h5py.SoftLink(f"/{first}")
        return offsets


def _allocate(file: Any, array: Dataset) -> int | None:
    """Create the dataset and its checksum; its offset, None where it has no bytes."""
    kind = _text(len(array.data)) if array.dtype == TEXT else dtypes.hdf5_type(array.dtype)
    created = h5d.create(file.id, array.path.encode(), kind, _space(array.shape), _contiguous(), _parents())
    checksum = h5a.create(created, DIGEST.encode(), _text(len(array.digest)), _space(()))
    checksum.write(np.array(array.digest.encode()))
    return created.get_offset() if len(array.data) else None


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


def _contiguous() -> Any:
    properties = h5p.create(h5p.DATASET_CREATE)
    properties.set_layout(h5d.CONTIGUOUS)
    properties.set_alloc_time(h5d.ALLOC_TIME_EARLY)
    properties.set_fill_time(h5d.FILL_TIME_NEVER)
    return properties


def _parents() -> Any:
    properties = h5p.create(h5p.LINK_CREATE)
    properties.set_create_intermediate_group(True)
    properties.set_char_encoding(h5t.CSET_UTF8)
    return properties


def _text(size: int) -> Any:
    kind = h5t.C_S1.copy()
    kind.set_size(size)
    kind.set_strpad(h5t.STR_NULLPAD)
    return kind


def _space(shape: tuple[int, ...]) -> Any:
    return h5s.create_simple(shape) if shape else h5s.create(h5s.SCALAR)


def _copy(source: int, target: int) -> int:
    """Copy what is not a hole; the size."""
    size = os.fstat(source).st_size
    os.ftruncate(target, size)
    for start, stop in _extents(source):
        block = np.empty(stop - start, np.uint8)
        rawio.read_at(source, block, start)
        rawio.write_at(target, block, start)
    return size


def _extents(fd: int) -> Iterator[tuple[int, int]]:
    """(start, stop) of what is not a hole."""
    stop = 0
    with suppress(OSError):  # ENXIO: nothing but a hole follows
        while True:
            start = os.lseek(fd, stop, os.SEEK_DATA)
            stop = os.lseek(fd, start, os.SEEK_HOLE)
            yield start, stop
