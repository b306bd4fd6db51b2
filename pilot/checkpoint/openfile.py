"""One file of a checkpoint, open for reading.

h5py is only used to find out where an array is; its bytes are read with ``preadv`` to their final place and hashed.
Files are never locked: a published file does not change, and locks fail on several shared file systems.
"""

from __future__ import annotations

import os
import re
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, BinaryIO

import h5py
import numpy as np
from h5py import h5d, h5g, h5l

from pilot.checkpoint import rawio
from pilot.checkpoint import structure as fields
from pilot.checkpoint.hdf5_types import hdf5_type
from pilot.checkpoint.leaves import Bytes
from pilot.checkpoint.structure import DatasetShare, RowRange, Structure
from pilot.core.errors import CheckpointError
from pilot.io.files import open_regular

BROKEN = (
    OSError,
    LookupError,
    ValueError,
    TypeError,
    RuntimeError,
    AttributeError,
    EOFError,
    MemoryError,
    OverflowError,
)
"""What h5py, json, numpy, torch and our own look-ups raise for a damaged or malicious file."""


class Damaged(CheckpointError):
    """The file does not contain what it should; the message says where."""


class OpenFile:
    """One HDF5 file, open twice: by h5py for its layout, by descriptor for its bytes. :class:`Damaged` if it cannot."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with ExitStack() as stack:
            self.fd = stack.enter_context(_opened(path)).fileno()
            try:
                self.file = stack.enter_context(h5py.File(path, "r", locking=False))
            except BROKEN as error:
                raise Damaged(f"{path.name}: {_open_problem(self.fd, error)}") from error
            self._stack = stack.pop_all()

    def __enter__(self) -> OpenFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def structure(self) -> Structure:
        """The structure according to the file; :class:`Damaged` if that itself is damaged."""
        try:
            text = self._bytes(fields.TEXT)
            if rawio.digest(text).encode() != self._bytes(fields.DIGEST).tobytes():
                raise ValueError("its checksum is wrong")
            structure = Structure.from_json(text.tobytes(), self._offsets())
            beside = self._number(fields.GENERATION), self._number(fields.STEP)
            if beside != (structure.generation, structure.step):
                raise ValueError("generation and step are not those beside it")
        except BROKEN as error:
            raise Damaged(f"{self.path.name}: dataset '{fields.TEXT}': {words(error)}") from error
        return structure

    @property
    def uid(self) -> str:
        """The uid of the trainer whose state it holds; "" if it has none."""
        try:
            return str(self.file.attrs.get(fields.UID, ""))
        except BROKEN as error:
            raise Damaged(f"{self.path.name}: attribute '{fields.UID}': {words(error)}") from error

    def check_uid(self, uid: str) -> None:
        """:class:`Damaged` if it holds the state of another trainer than ``uid``."""
        if self.uid != uid:
            whose = f"the state of another trainer ({self.uid})" if self.uid else "no trainer's uid"
            raise Damaged(f"{self.path.name}: it holds {whose}")

    def read(self, piece: RowRange, into: Bytes) -> bool:
        """Read ``piece`` from its recorded offset, without HDF5; returns whether the checksum is right."""
        with suppress(OSError, OverflowError):
            return piece.offset > 0 and rawio.read_at(self.fd, into, piece.offset) == piece.digest
        return False

    def problem(self, path: str, share: DatasetShare, piece: RowRange, into: Bytes) -> str | None:
        """Read ``piece`` of dataset ``path`` into ``into``; returns what is wrong with it, or None."""
        try:
            dataset = self._dataset(path)
            if dataset.shape != share.piece_shape(piece) or dataset.get_type() != hdf5_type(share.dtype):
                return "its shape or type is not what the structure says"
            if rawio.read_at(self.fd, into, dataset.get_offset() or 0) != piece.digest:
                return "its bytes do not match its checksum"
        except BROKEN as error:
            return words(error)
        return None

    @property
    def size(self) -> int:
        """Size of the file in bytes."""
        return os.fstat(self.fd).st_size

    def lacks(self, path: str) -> bool:
        """Whether there is no such name; links are not followed."""
        try:
            *folders, last = path.encode().split(b"/")
            return not _has(_folder(self.file.id, folders), last)
        except BROKEN:
            return True

    def _dataset(self, path: str) -> Any:
        """The dataset, with its bytes in this file: links are not followed, because they could lead anywhere."""
        *folders, last = path.encode().split(b"/")
        folder = _folder(self.file.id, folders)
        _check_hard(folder, last)
        dataset = h5d.open(folder, last)
        if dataset.get_create_plist().get_layout() != h5d.CONTIGUOUS:
            raise ValueError("its bytes are not in one place")
        return dataset

    def _bytes(self, path: str) -> Bytes:
        dataset = self._dataset(path)
        if dataset.get_storage_size() > self.size:
            raise ValueError("the file ends before it")
        data = np.empty(dataset.get_storage_size(), np.uint8)
        if rawio.read_at(self.fd, data, dataset.get_offset()) is None:
            raise ValueError("the file ends before it")
        return data

    def _offsets(self) -> list[int]:
        """The recorded offsets: a shortcut, because HDF5 knows them, too."""
        return [] if self.lacks(fields.OFFSETS) else self._bytes(fields.OFFSETS).view("<i8").tolist()

    def _number(self, path: str) -> int:
        return int(self._bytes(path).view("<i8")[0])


def _folder(root: Any, names: list[bytes]) -> Any:
    """The group below ``root``, through hard links only."""
    for name in names:
        _check_hard(root, name)
        root = h5g.open(root, name)
    return root


def _has(folder: Any, name: bytes) -> bool:
    return bool(name) and folder.links.exists(name)


def _check_hard(folder: Any, name: bytes) -> None:
    if not _has(folder, name):
        raise KeyError(f"there is no '{name.decode(errors='replace')}'")
    if folder.links.get_info(name).type != h5l.TYPE_HARD:
        raise ValueError(f"'{name.decode(errors='replace')}' is a link")


def _opened(path: Path) -> BinaryIO:
    try:
        return open_regular(path)
    except FileNotFoundError as error:
        raise Damaged(f"{path.name}: the file is missing") from error
    except OSError as error:
        raise Damaged(f"{path.name}: {error.strerror}") from error


def _open_problem(fd: int, error: BaseException) -> str:
    """HDF5's error message, shortened."""
    if isinstance(error, OSError) and error.errno:
        return os.strerror(error.errno)
    head = os.pread(fd, 8, 0)
    if head != b"\x89HDF\r\n\x1a\n":
        return "not an HDF5 file" if head else "the file is empty"
    return "the file is truncated" if "truncated" in str(error) else words(error)


def words(error: BaseException) -> str:
    """The error's message, without HDF5's "Unable to synchronously open object (...)" around it."""
    line = (str(error.args[0]) if error.args else type(error).__name__).partition("\n")[0]
    inner = re.fullmatch(r"(?:Unable|Can't|Couldn't)[^(]*\((.*)\)", line)
    return inner[1] if inner else line
