"""Reads a checkpoint: every byte of all parts is read and verified before anything is returned."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from pilot.checkpoint import dtypes, leaves, rawio, tree
from pilot.checkpoint.leaves import Bytes
from pilot.checkpoint.names import age_of
from pilot.checkpoint.openfile import BROKEN, Damaged, OpenFile, words
from pilot.checkpoint.shards import Rows
from pilot.checkpoint.structure import DatasetShare, RowRange, Structure


class _Room:
    """The memory for a dataset's pieces.

    Parameters
    ----------
    flat : the bytes of the wanted rows; None: bytes are only read
    rows : the wanted rows; None: all
    """

    def __init__(self, flat: Bytes | None, row_bytes: int, rows: Rows | None) -> None:
        self._flat, self._row_bytes, self._rows = flat, row_bytes, rows

    def of(self, piece: RowRange) -> Bytes | int:
        """The memory for ``piece``; its size, if it is only read."""
        size = (piece.stop - piece.start) * self._row_bytes
        if self._flat is None:
            return size
        return self._flat[piece.start * self._row_bytes :][:size] if self._rows is None else rawio.room(size)

    def keep(self, piece: RowRange, read: Bytes | int) -> None:
        """Keep the wanted rows of ``piece``."""
        if self._flat is not None and self._rows is not None and not isinstance(read, int):
            first, size = self._rows.first, self._row_bytes
            start, stop = max(piece.start, first), min(piece.stop, first + self._rows.count)
            if start < stop:
                taken = read[(start - piece.start) * size : (stop - piece.start) * size]
                self._flat[(start - first) * size : (stop - first) * size] = taken


@contextmanager
def opened(path: Path) -> Iterator[tuple[OpenFile, Structure]]:
    """Open the checkpoint (not a part) at ``path``, with its structure; :class:`Damaged` if it is incomplete, and
    instead of anything that h5py, numpy, torch or the tree raise while reading it, so that the previous checkpoint is
    used. :class:`Unreadable` if that cannot be known now.
    """
    with OpenFile(path) as file:
        try:
            structure = file.structure()
            _check_name(path, structure)
            yield file, structure
        except BROKEN as error:
            file.excuse(error)
            raise Damaged(f"{path.name}: {words(error)}") from error


Wanted = Callable[[str, tuple[int, ...]], Rows | None]
"""Returns the wanted rows of the dataset of that name and shape; None: all."""


def everything(_name: str, _shape: tuple[int, ...]) -> Rows | None:
    """All rows of all datasets."""
    return None


def load(path: Path, uid: str | None = None, wanted: Wanted = everything) -> tuple[Structure, Any]:
    """The structure and the state; :class:`Damaged` at the first problem, or if it belongs to another trainer than
    ``uid`` (None: any).

    Everything is read and verified, but only the ``wanted`` rows of each dataset are returned. Memory never holds more
    than these rows and one piece.
    """
    with opened(path) as (file, structure):
        if uid is not None:
            file.check_uid(uid)
        arrays = _arrays(file, structure, wanted)
        state = tree.decode(structure.tree, lambda kind, name: leaves.of_kind(kind, _leaf(kind, name, arrays)))
        if not isinstance(state, dict):
            raise Damaged(f"{path.name}: its content is not a valid state")
    return structure, state


@contextmanager
def one_by_one(path: Path, parts: Collection[str]) -> Iterator[tuple[dict[str, Any], Callable[[Any], Any]]]:
    """Open the checkpoint at ``path``; yields these ``parts`` of its state, whose tensors are on the device ``meta``,
    and a function that reads and verifies the tensor for one of those (and returns arrays as they are).
    """
    with opened(path) as (file, structure):
        names: dict[torch.Tensor, str] = {}

        def array(name: str) -> Any:
            try:
                return _arrays(file, replace(structure, datasets={name: structure.datasets[name]}))[name]
            except OSError as error:  # before the caller takes it for one of what it writes meanwhile
                file.excuse(error)
                raise

        def leaf(kind: str, name: str) -> Any:
            if kind != "tensor":
                return leaves.of_kind(kind, array(name))
            share = structure.datasets[name]
            empty = torch.empty(share.shape, dtype=dtypes.torch_dtype(share.dtype), device="meta")
            names[empty] = name
            return empty

        rows = [[key, value] for key, value in structure.tree["dict"] if key in parts]
        state = tree.decode({"dict": rows}, leaf)
        yield state, lambda value: array(names[value]) if isinstance(value, torch.Tensor) else value


def _arrays(file: OpenFile, structure: Structure, wanted: Wanted = everything) -> dict[str, Any]:
    """The wanted rows of all datasets, by name; :class:`Damaged` at the first problem."""
    arrays: dict[str, Any] = {}

    def place(name: str, share: DatasetShare) -> _Room:
        rows = wanted(name, share.shape)
        count = share.rows if rows is None else rows.count
        flat = rawio.room(count * share.row_bytes)
        shape = share.shape if rows is None else (rows.count, *share.shape[1:])
        arrays[name] = leaves.shaped(share.dtype, shape, flat)
        return _Room(flat, share.row_bytes, rows)

    for problem in _problems(file, structure, place, thorough=False):
        raise Damaged(problem)
    return arrays


def verify(path: Path) -> list[str]:
    """All problems of the checkpoint at ``path``; empty if it is intact. It is read from the disk.

    Raises
    ------
    Unreadable : that cannot be known now
    """
    try:
        with opened(path) as (file, structure):
            return list(_problems(file, structure, lambda _, share: _Room(None, share.row_bytes, None), thorough=True))
    except Damaged as error:
        return [str(error)]


def _problems(
    index: OpenFile, structure: Structure, place: Callable[[str, DatasetShare], _Room], *, thorough: bool
) -> Iterator[str]:
    """Read every piece of every dataset into the memory from ``place``; yields the problems, one line each.
    ``thorough``: read from the disk, and check the links that only other readers need.
    """
    with ExitStack() as stack:
        files = {"": index}
        size = index.size
        for name in sorted({piece.file for share in structure.datasets.values() for piece in share.pieces} - {""}):
            try:
                files[name] = stack.enter_context(OpenFile(index.path.parent / name))
                size += files[name].size
            except Damaged as error:
                yield str(error)
        if sum(share.rows * share.row_bytes for share in structure.datasets.values()) > size:
            yield f"{index.path.name}: its arrays would be larger than its files"
            return
        for opened_file in files.values() if thorough else ():
            opened_file.forget_cached()
        for name, share in structure.datasets.items():
            room = place(name, share)
            for piece in share.pieces:
                into, file = room.of(piece), files.get(piece.file)
                if file is None:
                    continue
                found = None if not thorough and file.read(piece, into) else file.problem(name, share, piece, into)
                if found:
                    yield f"{file.path.name}: dataset '{name}': {found}"
                room.keep(piece, into)
        if thorough:
            yield from _missing_links(index, structure)


def _leaf(kind: str, name: str, arrays: dict[str, Any]) -> Any:
    """The array of this ``kind``, if it is one. Each array occurs only once in the tree."""
    array = arrays.pop(name) if kind in ("bytes", "bytearray") else arrays[name]
    if isinstance(array, torch.Tensor) != (kind == "tensor"):
        raise ValueError(f"'{name}' is not a {kind}")
    return array


def _missing_links(index: OpenFile, structure: Structure) -> Iterator[str]:
    """Missing links that other readers of the file need: to datasets in parts, and aliases of datasets."""
    spread = [name for name, share in structure.datasets.items() if share.pieces[0].file]
    for name in (*spread, *structure.aliases):
        if index.lacks(name):
            yield f"{index.path.name}: the link '{name}' is missing"


def _check_name(path: Path, structure: Structure) -> None:
    age = age_of(path.name)
    if age and (age.generation, age.step) != (structure.generation, structure.step):
        raise Damaged(f"{path.name}: it holds generation {structure.generation}, step {structure.step}")
    if structure.part or (structure.parts and not _spread(structure.datasets)):
        raise Damaged(f"{path.name}: it is one part of a checkpoint; open the file without 'part' in its name")
    if missing := [name for name, share in structure.datasets.items() if not share.is_complete]:
        raise Damaged(f"{path.name}: rows are missing from dataset '{missing[0]}'")


def _spread(datasets: Mapping[str, DatasetShare]) -> bool:
    return all(piece.file for share in datasets.values() for piece in share.pieces)
