"""Writing in parallel: each of k ranks writes its share as a part; an index, published last, makes one checkpoint."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pilot.checkpoint import names, rawio, tree
from pilot.checkpoint.layout import Slot
from pilot.checkpoint.openfile import OpenFile
from pilot.checkpoint.publish import Array, publish
from pilot.checkpoint.structure import Piece, Share, Structure, rows_of
from pilot.checkpoint.tree import Leaf
from pilot.core.errors import CheckpointError, UserError

CUT_BYTES = 1024 * 1024
"""Datasets smaller than this are not cut into rows."""


@dataclass(frozen=True, slots=True)
class Part:
    """A part that was published. It is no checkpoint before the index is."""

    path: Path
    bytes: int
    seconds: float


def write_part(directory: Path, generation: int, step: int, part: int, parts: int, state: Mapping[str, Any]) -> Part:
    """Publish share ``part`` of ``parts`` of ``state``, which is the same on all ranks.

    The shares are equal in bytes, up to one row of a tensor. What the ranks' states do not share (their scalars) is
    taken from part 0.

    Raises
    ------
    CheckpointError : a value cannot be stored, or the disk refuses
    """
    if not 0 <= part < parts:
        raise UserError(f"part {part} of {parts} does not exist; parts are numbered from 0")
    started_s = time.monotonic()
    encoded = tree.encode(state)
    arrays, table = [], {}
    for leaf, start, stop in split(encoded.leaves, part, parts):
        share = Share(leaf.dtype, leaf.shape, ())
        rows = share.piece_shape(Piece("", start, stop, ""))
        data = leaf.data[start * share.row_bytes : stop * share.row_bytes]
        arrays.append(Array(Slot(leaf.path, leaf.dtype, rows), data))
        table[leaf.path] = replace(share, pieces=(Piece("", start, stop, rawio.digest(data)),))
    about = Structure(generation, step, part, parts, encoded.layout(), encoded.tree, table, encoded.aliases)
    path = directory / names.part_name(generation, step, part, parts)
    size = publish(path, about, arrays, linked=False)
    return Part(path, size, time.monotonic() - started_s)


def publish_index(directory: Path, generation: int, step: int, parts: int) -> int:
    """Publish the index of the parts; the size of the whole in bytes.

    Raises
    ------
    CheckpointError : a part is missing, or the parts do not make up one state
    """
    paths = [directory / names.part_name(generation, step, part, parts) for part in range(parts)]
    abouts = [_read(path) for path in paths]
    for path, about in zip(paths, abouts, strict=True):
        if about.layout != abouts[0].layout:
            raise CheckpointError(f"{path.name}: its state differs from that of part 0 in names, types or shapes")
    about = replace(abouts[0], datasets=_merge((path.name, about) for path, about in zip(paths, abouts, strict=True)))
    path = directory / names.checkpoint_name(generation, step)
    size = publish(path, about, ())
    return size + sum(path.stat().st_size for path in paths)


def split(leaves: Iterable[Leaf], part: int, parts: int) -> Iterator[tuple[Leaf, int, int]]:
    """Share ``part``: (leaf, first row, last row + 1), the same for all who ask.

    The leaves make one line of bytes, cut at multiples of 1/``parts``; a row belongs to where it begins.
    """
    leaves = list(leaves)
    total = sum(len(leaf.data) for leaf in leaves)
    low, high = total * part // parts, total * (part + 1) // parts
    begin = 0
    for leaf in leaves:
        rows = rows_of(leaf.shape)
        if len(leaf.data) < CUT_BYTES:
            inside = low <= begin < high or (part == parts - 1 and begin == total)
            start, stop = (0, rows) if inside else (0, 0)
        else:
            start, stop = (_rows_before(bound - begin, len(leaf.data), rows) for bound in (low, high))
            inside = start < stop
        if inside:
            yield leaf, start, stop
        begin += len(leaf.data)


def _rows_before(bound: int, size: int, rows: int) -> int:
    """How many of the rows begin before byte ``bound`` of the leaf."""
    return min(max(-(-bound * rows // size), 0), rows)


def _read(path: Path) -> Structure:
    with OpenFile(path) as file:
        return file.structure()


def _merge(parts: Iterable[tuple[str, Structure]]) -> dict[str, Share]:
    """All pieces of each dataset, in order of their rows, with the file that each lies in."""
    table: dict[str, Share] = {}
    for name, about in parts:
        for path, share in about.datasets.items():
            known = table.get(path, replace(share, pieces=()))
            table[path] = replace(known, pieces=known.pieces + tuple(replace(p, file=name) for p in share.pieces))
    return table
