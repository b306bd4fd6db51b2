"""Reading a checkpoint: every byte, in all its parts, is read and compared before anything is returned."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pilot.checkpoint import leaves, tree
from pilot.checkpoint.leaves import Bytes
from pilot.checkpoint.names import age_of
from pilot.checkpoint.openfile import BROKEN, Damaged, OpenFile, words
from pilot.checkpoint.structure import DatasetShare, Structure


@contextmanager
def opened(path: Path) -> Iterator[tuple[OpenFile, Structure]]:
    """The checkpoint (not a part) at ``path`` and its structure; :class:`Damaged` where that is not whole, and in place
    of all that h5py, numpy, torch and the tree raise on it meanwhile: whoever wrote it, the one before is taken then.
    """
    try:
        with OpenFile(path) as file:
            structure = file.structure()
            _check_name(path, structure)
            yield file, structure
    except BROKEN as error:
        raise Damaged(f"{path.name}: {words(error)}") from error


def load(path: Path, uid: str | None = None) -> tuple[Structure, Any]:
    """The structure and the state; :class:`Damaged` at the first problem, and where it is not of the trainer ``uid``
    (None: any trainer's, or none's).
    """
    arrays: dict[str, Any] = {}

    def place(name: str, share: DatasetShare) -> Bytes:
        flat = np.empty(share.rows * share.row_bytes, np.uint8)  # numpy's memory, for it asks for huge pages
        arrays[name] = leaves.shaped(share.dtype, share.shape, flat)
        return flat

    with opened(path) as (file, structure):
        if uid is not None:
            file.check_uid(uid)
        for problem in _problems(file, structure, place, thorough=False):
            raise Damaged(problem)
        state = tree.decode(structure.tree, lambda kind, name: leaves.of_kind(kind, _leaf(kind, name, arrays)))
        if not isinstance(state, dict):
            raise Damaged(f"{path.name}: its content is not a valid state")
    return structure, state


def verify(path: Path) -> list[str]:
    """All problems of the checkpoint at ``path``; empty where it is whole."""
    try:
        with opened(path) as (file, structure):
            largest = max((s.rows * s.row_bytes for s in structure.datasets.values()), default=0)
            scratch = np.empty(largest, np.uint8)

            def room(_name: str, share: DatasetShare) -> Bytes:
                return scratch[: share.rows * share.row_bytes]

            return list(_problems(file, structure, room, thorough=True))
    except Damaged as error:
        return [str(error)]


def _problems(
    index: OpenFile, structure: Structure, place: Callable[[str, DatasetShare], Bytes], *, thorough: bool
) -> Iterator[str]:
    """Read every piece of every dataset into what ``place`` gives; what is wrong, one line each.

    ``thorough``: also what only other readers would not find. For us the bytes are enough.
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
        for name, share in structure.datasets.items():
            whole, row_bytes = place(name, share), share.row_bytes
            for piece in share.pieces:
                into, file = whole[piece.start * row_bytes : piece.stop * row_bytes], files.get(piece.file)
                if file is None or (not thorough and file.read(piece, into)):
                    continue
                if found := file.problem(name, share, piece, into):
                    yield f"{file.path.name}: dataset '{name}': {found}"
        if thorough:
            yield from _missing_links(index, structure)


def _leaf(kind: str, name: str, arrays: dict[str, Any]) -> Any:
    """The array that the tree calls ``kind``, if it is one. What is copied is in the tree once."""
    array = arrays.pop(name) if kind in ("bytes", "bytearray") else arrays[name]
    if isinstance(array, torch.Tensor) != (kind == "tensor") or (kind == "scalar" and array.ndim):
        raise ValueError(f"'{name}' is not a {kind}")
    return array


def _missing_links(index: OpenFile, structure: Structure) -> Iterator[str]:
    """What other readers of the file would not find: names of datasets in parts, further names of datasets."""
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
    if missing := [name for name, share in structure.datasets.items() if not share.is_whole]:
        raise Damaged(f"{path.name}: rows are missing from dataset '{missing[0]}'")


def _spread(datasets: Mapping[str, DatasetShare]) -> bool:
    return all(piece.file for share in datasets.values() for piece in share.pieces)
