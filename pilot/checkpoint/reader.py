"""Reading a checkpoint: every byte is read and compared before anything is returned.

h5py only tells where an array lies; the bytes are read with ``preadv`` into their final place and hashed on the way.
Files are never locked: a published file does not change, and locks fail on several shared file systems.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch
from h5py import h5d

from pilot.checkpoint import dtypes, rawio, tree
from pilot.checkpoint import structure as described
from pilot.checkpoint.names import age_of
from pilot.checkpoint.rawio import Bytes
from pilot.checkpoint.structure import Piece, Share, Structure
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
            text = self._bytes(described.TEXT)
            if rawio.digest(text).encode() != self._bytes(described.DIGEST).tobytes():
                raise ValueError("its checksum is wrong")
            structure = Structure.from_json(text.tobytes())
            beside = self._number(described.GENERATION), self._number(described.STEP)
            if beside != (structure.generation, structure.step):
                raise ValueError("generation and step are not those beside it")
        except _BROKEN as error:
            raise Damaged(f"{self.path.name}: dataset '{described.TEXT}': {_words(error)}") from error
        return structure

    def problem(self, path: str, share: Share, piece: Piece, into: Bytes) -> str | None:
        """Read ``piece`` of dataset ``path`` into ``into``; what is wrong with it, or None."""
        try:
            dataset = h5d.open(self.file.id, path.encode())
            if dataset.shape != share.piece_shape(piece) or dataset.get_type() != dtypes.hdf5_type(share.dtype):
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

    def _number(self, path: str) -> int:
        return int(self._bytes(path).view("<i8")[0])


def read_structure(path: Path) -> Structure:
    """The structure of the checkpoint (not of a part) at ``path``."""
    with OpenFile(path) as file:
        structure = file.structure()
    _check_name(path, structure)
    return structure


def problems(path: Path, structure: Structure, place: Callable[[str, Share], Bytes]) -> Iterator[str]:
    """Read every piece of every dataset into what ``place`` gives; what is wrong, one line each."""
    with ExitStack() as stack:
        index = stack.enter_context(OpenFile(path))
        files = {"": index}
        for name in sorted({piece.file for share in structure.datasets.values() for piece in share.pieces} - {""}):
            try:
                files[name] = stack.enter_context(OpenFile(path.parent / name))
            except Damaged as error:
                yield str(error)
        for name, share in structure.datasets.items():
            whole = place(name, share)
            for piece in share.pieces:
                into = whole[piece.start * share.row_bytes : piece.stop * share.row_bytes]
                file = files.get(piece.file)
                if file and (found := file.problem(name, share, piece, into)):
                    yield f"{file.path.name}: dataset '{name}': {found}"
        yield from _missing_links(index, structure)


def load(path: Path) -> tuple[Structure, Any]:
    """The structure and the state; :class:`Damaged` at the first problem."""
    structure = read_structure(path)
    arrays: dict[str, Any] = {}

    def place(name: str, share: Share) -> Bytes:
        arrays[name], flat = _allocate(share)
        return flat

    for problem in problems(path, structure, place):
        raise Damaged(problem)
    return structure, tree.decode(structure.tree, lambda kind, name: _leaf(kind, arrays[name]))


def verify(path: Path) -> list[str]:
    """All problems of the checkpoint at ``path``; empty where it is whole."""
    try:
        structure = read_structure(path)
        largest = max((s.rows * s.row_bytes for s in structure.datasets.values()), default=0)
        scratch = np.empty(largest, np.uint8)
        return list(problems(path, structure, lambda _, share: scratch[: share.rows * share.row_bytes]))
    except Damaged as error:
        return [str(error)]


def _allocate(share: Share) -> tuple[Any, Bytes]:
    """An array of the share's shape and type, and its bytes."""
    if dtypes.is_torch(share.dtype):
        tensor = torch.empty(share.shape, dtype=dtypes.torch_dtype(share.dtype))
        return tensor, tensor.reshape(-1).view(torch.uint8).numpy()
    array = np.empty(share.shape, np.dtype(share.dtype))
    return array, array.reshape(-1).view(np.uint8) if array.nbytes else np.empty(0, np.uint8)


def _leaf(kind: str, array: Any) -> Any:
    match kind:
        case "scalar":
            return array[()]
        case "bytes":
            return array.tobytes()
        case "bytearray":
            return bytearray(array.tobytes())
        case _:
            return array


def _missing_links(index: OpenFile, structure: Structure) -> Iterator[str]:
    """What other readers of the file would not find: names of datasets in parts, further names of datasets."""
    spread = [name for name, share in structure.datasets.items() if share.pieces[0].file]
    for name in (*spread, *structure.aliases):
        if index.lacks(name):
            yield f"{index.path.name}: the link '{name}' is missing"


def _descriptor(path: Path) -> int:
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError as error:
        raise Damaged(f"{path.name}: the file is missing") from error
    except OSError as error:
        raise Damaged(f"{path.name}: {error.strerror}") from error


def _check_name(path: Path, structure: Structure) -> None:
    age = age_of(path.name)
    if age and (age.generation, age.step) != (structure.generation, structure.step):
        raise Damaged(f"{path.name}: it holds generation {structure.generation}, step {structure.step}")
    if structure.part or (structure.parts and not _spread(structure.datasets)):
        raise Damaged(f"{path.name}: it is one part of a checkpoint; open the file without 'part' in its name")


def _spread(datasets: Mapping[str, Share]) -> bool:
    return all(piece.file for share in datasets.values() for piece in share.pieces)


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
