"""One file of a checkpoint, open for reading.

h5py is only used to find out where an array is; its bytes are read with ``preadv`` to their final place and hashed.
HDF5 reads through our descriptor, too, so that we know whether it complains of what it read (the file is *damaged*, and
will be tomorrow) or could not read (the file is *unreadable* now, on this node): its errors do not show that. Files are
never locked: a published file does not change, and locks fail on several shared file systems.
"""

from __future__ import annotations

import errno
import io
import os
import re
import stat
from contextlib import ExitStack
from pathlib import Path
from typing import Any, BinaryIO

import h5py
import numpy as np
from h5py import h5d, h5g, h5l

from pilot.checkpoint import rawio
from pilot.checkpoint import structure as fields
from pilot.checkpoint.layout import hdf5_type
from pilot.checkpoint.leaves import Bytes
from pilot.checkpoint.structure import DatasetShare, RowRange, Structure
from pilot.core.errors import CheckpointError, Unreadable
from pilot.host.files import open_regular

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
"""The errors of h5py, json, numpy, torch and our own look-ups for a damaged or malicious file."""


class Damaged(CheckpointError):
    """The file does not have the right content; the message names the place."""


class _Reads(io.RawIOBase):
    """HDF5's reads from ``fd``. A ``failure`` is stored instead of raised, as in :mod:`pilot.checkpoint.layout`."""

    failure: OSError | None = None

    def __init__(self, fd: int) -> None:
        self._fd, self._at = fd, 0

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """HDF5 seeks from the beginning, and to the end for the size."""
        self._at = offset + (os.fstat(self._fd).st_size if whence == os.SEEK_END else 0)
        return self._at

    def tell(self) -> int:
        """Where it reads next."""
        return self._at

    def readinto(self, into: Any) -> int:
        """Fill ``into``, with zeros where nothing could be read."""
        view, done = np.asarray(into), 0
        try:
            done = rawio.fill(self._fd, view, self._at)
        except OSError as error:
            self.failure = self.failure or error.with_traceback(None)
        except OverflowError:
            pass  # no file is so long
        view[done:] = 0
        return len(view)


class OpenFile:
    """One HDF5 file, open. :class:`Unreadable` if it cannot be read now, :class:`Damaged` if it is no such file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with ExitStack() as stack:
            self.fd = stack.enter_context(open_file(path)).fileno()
            self._reads = _Reads(self.fd)
            try:
                self.file = stack.enter_context(h5py.File(self._reads, "r"))
            except BROKEN as error:
                # Its frames hold a handle of HDF5's. HDF5 would close it after Python has ended, and call us for that.
                error.__traceback__ = None
                self.excuse(error)
                raise Damaged(f"{path.name}: {self._open_problem(error)}") from error
            self._stack = stack.pop_all()

    def __enter__(self) -> OpenFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def excuse(self, error: BaseException) -> None:
        """Raise :class:`Unreadable` if ``error`` is due to a failed read: the file is not to blame then.

        With HDF5 reading through us, only our own system calls raise an error with a number; and no memory is
        requested for more than the file has.
        """
        found = self._reads.failure or error
        if isinstance(found, OSError) and found.errno:
            raise Unreadable(f"{self.path.name}: {os.strerror(found.errno)}") from error
        if isinstance(found, MemoryError):
            raise Unreadable(f"{self.path.name}: there is no memory to read it") from error

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
            self.excuse(error)
            raise Damaged(f"{self.path.name}: dataset '{fields.TEXT}': {words(error)}") from error
        return structure

    @property
    def uid(self) -> str:
        """The uid of the trainer whose state it holds; "" if it has none."""
        try:
            return str(self.file.attrs.get(fields.UID, ""))
        except BROKEN as error:
            self.excuse(error)
            raise Damaged(f"{self.path.name}: attribute '{fields.UID}': {words(error)}") from error

    def check_uid(self, uid: str) -> None:
        """:class:`Damaged` if it holds the state of another trainer than ``uid``."""
        if self.uid != uid:
            whose = f"the state of another trainer ({self.uid})" if self.uid else "no trainer's uid"
            raise Damaged(f"{self.path.name}: it holds {whose}")

    def read(self, piece: RowRange, into: Bytes | int) -> bool:
        """Read ``piece`` from its recorded offset, without HDF5; returns whether the checksum is right."""
        return piece.offset > 0 and self._read_at(into, piece.offset) == piece.digest

    def problem(self, path: str, share: DatasetShare, piece: RowRange, into: Bytes | int) -> str | None:
        """Read ``piece`` of dataset ``path`` into ``into``; returns the problem, or None."""
        try:
            dataset = self._dataset(path)
            if dataset.shape != share.piece_shape(piece) or dataset.get_type() != hdf5_type(share.dtype):
                return "its shape or type differs from the structure"
            if self._read_at(into, dataset.get_offset() or 0) != piece.digest:
                return "its bytes do not match its checksum"
        except BROKEN as error:
            self.excuse(error)
            return words(error)
        return None

    def forget_cached(self) -> None:
        """Have later reads come from the disk, not from this node's memory."""
        os.posix_fadvise(self.fd, 0, 0, os.POSIX_FADV_DONTNEED)

    @property
    def size(self) -> int:
        """Size of the file in bytes."""
        return os.fstat(self.fd).st_size

    def lacks(self, path: str) -> bool:
        """Whether there is no such name; links are not followed."""
        try:
            *folders, last = path.encode().split(b"/")
            return not _has(_folder(self.file.id, folders), last)
        except BROKEN as error:
            self.excuse(error)
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
        data = rawio.room(dataset.get_storage_size())
        if self._read_at(data, dataset.get_offset() or 0) is None:
            raise ValueError("the file ends before it")
        return data

    def _read_at(self, into: Bytes | int, offset: int) -> str | None:
        """The checksum of what is at ``offset``; None if the file ends before that."""
        length = into if isinstance(into, int) else len(into)
        return rawio.read_at(self.fd, into, offset) if offset + length <= self.size else None

    def _offsets(self) -> list[int]:
        """The recorded offsets: a shortcut, because HDF5 knows them, too."""
        return [] if self.lacks(fields.OFFSETS) else self._bytes(fields.OFFSETS).view("<i8").tolist()

    def _open_problem(self, error: BaseException) -> str:
        """HDF5's error message, shortened."""
        head = np.zeros(8, np.uint8)
        try:
            there = rawio.fill(self.fd, head, 0)
        except OSError as failure:
            self.excuse(failure)
            raise
        if head.tobytes() != b"\x89HDF\r\n\x1a\n":
            return "not an HDF5 file" if there else "the file is empty"
        return "the file is truncated" if "truncated" in str(error) else words(error)

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


def open_file(path: Path) -> BinaryIO:
    """The file at ``path``; :class:`Damaged` if there is none, :class:`Unreadable` if that cannot be known now."""
    try:
        return open_regular(path)
    except OSError as error:
        if not _is_no_file(path):
            raise Unreadable(f"{path.name}: {error.strerror}") from error
        missing = isinstance(error, FileNotFoundError)
        raise Damaged(f"{path.name}: {'the file is missing' if missing else error.strerror}") from error


def _is_no_file(path: Path) -> bool:
    """Whether there certainly is no file: the folder can be read, and has none of this name."""
    try:
        return path not in path.parent.iterdir() or not stat.S_ISREG(path.stat().st_mode)
    except OSError as error:
        return error.errno == errno.ELOOP


def words(error: BaseException) -> str:
    """The error's message, without HDF5's "Unable to synchronously open object (...)" around it."""
    line = (str(error.args[0]) if error.args else type(error).__name__).partition("\n")[0]
    inner = re.fullmatch(r"(?:Unable|Can't|Couldn't)[^(]*\((.*)\)", line)
    return inner[1] if inner else line
