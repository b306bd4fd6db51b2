"""Writing in parallel: each of k ranks writes its share as a part; an index, published last, makes one checkpoint.

Which rows a rank writes of tensors that are sharded over the ranks of its node.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from pilot.checkpoint import names, rawio, tree
from pilot.checkpoint.layout import DatasetSlot
from pilot.checkpoint.leaves import Leaf
from pilot.checkpoint.openfile import OpenFile
from pilot.checkpoint.own_directory import held
from pilot.checkpoint.publish import Array, publish
from pilot.checkpoint.shards import Rows
from pilot.checkpoint.structure import DatasetShare, RowRange, Structure, rows_of
from pilot.checkpoint.tree import Encoded
from pilot.core.errors import CheckpointError, UserError

CUT_BYTES = 1024 * 1024
"""Datasets smaller than this are not cut into rows."""


@dataclass(frozen=True, slots=True)
class WrittenPart:
    """A published part. Only the index makes the parts a checkpoint."""

    path: Path
    bytes: int
    seconds: float


def everything(_path: str) -> bool:
    """For when all of the state is the same on all ranks."""
    return True


@rawio.uncollected()
def write_part(
    directory: Path,
    generation: int,
    step: int,
    part: int,
    parts: int,
    state: Mapping[str, Any] | Encoded,
    shared: Callable[[str], bool] = everything,
    uid: str = "",
) -> WrittenPart:
    """Publish share ``part`` of ``parts`` of ``state``.

    Of a sharded tensor, all rows in ``state`` are written: see :mod:`pilot.checkpoint.parts`.

    Arrays whose path ``shared`` accepts are the same on all ranks: each part has a checksum of all of them, and the
    shares have equal sizes in bytes, up to one row. What belongs to a single rank (buffers, random states, scalars) is
    taken from part 0.

    Raises
    ------
    CheckpointError : a value cannot be stored, or writing fails
    """
    if not 0 <= part < parts:
        raise UserError(f"part {part} of {parts} does not exist; parts are numbered from 0")
    started_s = time.monotonic()
    encoded = tree.encode(state)
    sharded = [leaf for leaf in encoded.leaves if leaf.rows is not None]
    common = [leaf for leaf in encoded.leaves if shared(leaf.path) and leaf.rows is None]
    digests = {leaf.path: rawio.digest(leaf.data) for leaf in common}
    share = list(split(common, part, parts))
    if part == 0:
        own = (leaf for leaf in encoded.leaves if leaf.path not in digests and leaf.rows is None)
        share += [(leaf, 0, rows_of(leaf.shape)) for leaf in own]
    share += [(leaf, 0, leaf.shape[0]) for leaf in sharded]
    pieces = [_piece(leaf, start, stop, digests.get(leaf.path, "")) for leaf, start, stop in share]
    table = {array.slot.path: described for array, described in pieces}
    checksum = _checksum(common, digests)
    about = Structure(generation, step, part, parts, checksum, encoded.tree, table, encoded.aliases)
    name = names.part_name(generation, step, part, parts)
    with held(directory, uid, make=True) as place:
        size = publish(place / name, about, [array for array, _ in pieces], uid, linked=False)
    return WrittenPart(directory / name, size, time.monotonic() - started_s)


def _piece(leaf: Leaf, start: int, stop: int, whole: str) -> tuple[Array, DatasetShare]:
    """Rows [start, stop) of ``leaf``, and their description; ``whole`` is the leaf's checksum, if known."""
    first = leaf.rows.first if leaf.rows is not None else 0
    share = DatasetShare(leaf.dtype, leaf.rows.whole if leaf.rows is not None else leaf.shape, ())
    rows = share.piece_shape(RowRange("", start, stop, ""))
    data = leaf.data[start * share.row_bytes : stop * share.row_bytes]
    digest = whole if whole and len(data) == leaf.size else rawio.digest(data)
    return Array(DatasetSlot(leaf.path, leaf.dtype, rows), data), replace(
        share, pieces=(RowRange("", first + start, first + stop, digest),)
    )


def _checksum(leaves: Sequence[Leaf], digests: Mapping[str, str]) -> str:
    """A checksum of all names, types, shapes and bytes."""
    rows = [[leaf.path, leaf.dtype, leaf.shape, digests[leaf.path]] for leaf in leaves]
    return rawio.digest(np.frombuffer(json.dumps(rows).encode(), np.uint8))


def publish_index(directory: Path, generation: int, step: int, parts: int, uid: str) -> int:
    """Publish the index of the parts in ``directory``, which is held; returns the checkpoint's total size in bytes.

    Raises
    ------
    CheckpointError : a part is missing, or the parts do not make up one state
    """
    paths = [directory / names.part_name(generation, step, part, parts) for part in range(parts)]
    abouts = [_read(path, uid) for path in paths]
    for path, about in zip(paths, abouts, strict=True):
        if about.shared_checksum != abouts[0].shared_checksum:
            raise CheckpointError(
                f"{path.name}: it differs from part 0 in what the ranks share (parameters, optimizer): no "
                f"checkpoint was made of step {step}"
            )
    about = replace(abouts[0], datasets=_merge((path.name, about) for path, about in zip(paths, abouts, strict=True)))
    for name, share in about.datasets.items():
        if not share.is_whole:
            raise CheckpointError(f"no checkpoint was made of step {step}: no part has some rows of '{name}'")
    path = directory / names.checkpoint_name(generation, step)
    size = publish(path, about, (), uid)
    return size + sum(path.stat().st_size for path in paths)


def split(leaves: Iterable[Leaf], part: int, parts: int) -> Iterator[tuple[Leaf, int, int]]:
    """Share ``part``: (leaf, first row, last row + 1); all ranks compute the same shares.

    The leaves are treated as one sequence of bytes, cut at multiples of 1/``parts``; a row belongs to the share in
    which it begins.
    """
    leaves = list(leaves)
    total = sum(leaf.size for leaf in leaves)
    low, high = total * part // parts, total * (part + 1) // parts
    begin = 0
    for leaf in leaves:
        rows = rows_of(leaf.shape)
        if leaf.size < CUT_BYTES:
            inside = low <= begin < high or (part == parts - 1 and begin == total)
            start, stop = (0, rows) if inside else (0, 0)
        else:
            start, stop = (_rows_before(bound - begin, leaf.size, rows) for bound in (low, high))
            inside = start < stop
        if inside:
            yield leaf, start, stop
        begin += leaf.size


def _rows_before(bound: int, size: int, rows: int) -> int:
    """How many of the rows begin before byte ``bound`` of the leaf."""
    return min(max(-(-bound * rows // size), 0), rows)


def _read(path: Path, uid: str) -> Structure:
    with OpenFile(path) as file:
        file.check_uid(uid)
        return file.structure()


def _merge(parts: Iterable[tuple[str, Structure]]) -> dict[str, DatasetShare]:
    """All pieces of each dataset, in the order of their rows, with the file that contains each."""
    table: dict[str, tuple[DatasetShare, list[RowRange]]] = {}
    for name, about in parts:
        for path, share in about.datasets.items():
            _, pieces = table.setdefault(path, (share, []))
            pieces += [RowRange(name, piece.start, piece.stop, piece.digest, piece.offset) for piece in share.pieces]
    return {
        path: DatasetShare(share.dtype, share.shape, tuple(sorted(pieces, key=lambda piece: piece.start)))
        for path, (share, pieces) in table.items()
    }


def own_rows(state: Encoded, node: int, nodes: int) -> Encoded:
    """``state`` with only the rows of sharded tensors that a rank of node ``node`` of ``nodes`` writes, because all
    nodes hold the same ones. Nothing is copied.
    """
    leaves = (leaf if leaf.rows is None else _some_rows(leaf, leaf.rows, node, nodes) for leaf in state.leaves)
    return replace(state, leaves=[leaf for leaf in leaves if leaf is not None])


def _some_rows(leaf: Leaf, rows: Rows, node: int, nodes: int) -> Leaf | None:
    start, stop = rows.count * node // nodes, rows.count * (node + 1) // nodes
    if start == stop and rows.whole[0]:
        return None
    own = Rows(rows.whole, rows.first + start, stop - start)
    return Leaf(leaf.path, leaf.dtype, (own.count, *leaf.shape[1:]), leaf.source[start:stop], own)
