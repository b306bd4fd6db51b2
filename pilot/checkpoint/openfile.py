"""One file of a checkpoint, open for reading.

h5py only tells where an array lies; the bytes are read with ``preadv`` into their final place and hashed on the way.
Files are never locked: a published file does not change, and locks fail on several shared file systems.
"""

from __future__ import annotations

import os
import re
from contextlib import ExitStack, suppress
from pathlib import Path

import h5py
import numpy as np
from h5py import h5d

from pilot.checkpoint import rawio
from pilot.checkpoint import structure as fields
from pilot.checkpoint.hdf5_types import hdf5_type
from pilot.checkpoint.leaves import Bytes
from pilot.checkpoint.structure import DatasetShare, RowRange, Structure
from pilot.core.errors import CheckpointError

_BROKEN = (OSError, KeyError, ValueError, TypeError, RuntimeError, AttributeError, EOFError)
"""What h5py, json and our own look-ups raise on a file that is damaged."""


class Damaged(CheckpointError):
    """The file does not hold what it must; the message says where."""


class OpenFile:
    """One HDF5 file, open twice: by h5py for its layout, by descriptor for its bytes. :class:`Damaged` if it cannot."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with ExitStack() as stack:
            self.fd = _descriptor(path)
            stack.callback(os.close, self.fd)
            try:
                self.file = stack.enter_context(h5py.File(path, "r", locking=False))
            except _BROKEN as error:
                raise Damaged(f"{path.name}: {_open_problem(self.fd, error)}") from error
            self._stack = stack.pop_all()

    def __enter__(self) -> OpenFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def structure(self) -> Structure:
        """What the file says that it holds; :class:`Damaged` where that itself is not whole."""
        try:
            text = self._bytes(fields.TEXT)
            if rawio.digest(text).encode() != self._bytes(fields.DIGEST).tobytes():
                raise ValueError("its checksum is wrong")
            structure = Structure.from_json(text.tobytes(), self._offsets())
            beside = self._number(fields.GENERATION), self._number(fields.STEP)
            if beside != (structure.generation, structure.step):
                raise ValueError("generation and step are not those beside it")
        except _BROKEN as error:
            raise Damaged(f"{self.path.name}: dataset '{fields.TEXT}': {_words(error)}") from error
        return structure

    def read(self, piece: RowRange, into: Bytes) -> bool:
        """Read ``piece`` from where it was written, whatever HDF5 says; whether these are its bytes."""
        with suppress(OSError):
            return piece.offset > 0 and rawio.read_at(self.fd, into, piece.offset) == piece.digest
        return False

    def problem(self, path: str, share: DatasetShare, piece: RowRange, into: Bytes) -> str | None:
        """Read ``piece`` of dataset ``path`` into ``into``; what is wrong with it, or None."""
        try:
            dataset = h5d.open(self.file.id, path.encode())
            if dataset.shape != share.piece_shape(piece) or dataset.get_type() != hdf5_type(share.dtype):
                return "its shape or type is not what the structure says"
            if rawio.read_at(self.fd, into, dataset.get_offset() or 0) != piece.digest:
                return "its bytes do not match its checksum"
        except _BROKEN as error:
            return _words(error)
        return None

    def lacks(self, path: str) -> bool:
        """Whether there is no such name."""
        try:
            return path not in self.file
        except _BROKEN:
            return True

    def _bytes(self, path: str) -> Bytes:
        dataset = h5d.open(self.file.id, path.encode())
        data = np.empty(dataset.get_storage_size(), np.uint8)
        if rawio.read_at(self.fd, data, dataset.get_offset()) is None:
            raise ValueError("the file ends before it")
        return data

    def _offsets(self) -> list[int]:
        """A shortcut: without it HDF5 knows."""
        return [] if self.lacks(fields.OFFSETS) else self._bytes(fields.OFFSETS).view("<i8").tolist()

    def _number(self, path: str) -> int:
        return int(self._bytes(path).view("<i8")[0])


def _descriptor(path: Path) -> int:
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError as error:
        raise Damaged(f"{path.name}: the file is missing") from error
    except OSError as error:
        raise Damaged(f"{path.name}: {error.strerror}") from error


def _open_problem(fd: int, error: BaseException) -> str:
    """HDF5's own words, made short."""
    if isinstance(error, OSError) and error.errno:
        return os.strerror(error.errno)
    head = os.pread(fd, 8, 0)
    if head != b"\x89HDF\r\n\x1a\n":
        return "not an HDF5 file" if head else "the file is empty"
    return "the file is truncated" if "truncated" in str(error) else _words(error)


def _words(error: BaseException) -> str:
    """What the error says, without HDF5's "Unable to synchronously open object (...)" around it."""
    line = (str(error.args[0]) if error.args else type(error).__name__).partition("\n")[0]
    inner = re.fullmatch(r"(?:Unable|Can't|Couldn't)[^(]*\((.*)\)", line)
    return inner[1] if inner else line
