"""Publishing the files of a checkpoint: a complete state as one file; or each of k ranks its share as a part, and an
index last, which makes the parts one checkpoint.

Of tensors that are sharded over the ranks of a node, each rank writes some of its rows.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from pilot.checkpoint import layout, names, rawio, structure, tree
from pilot.checkpoint.layout import DatasetSlot, FileLayout
from pilot.checkpoint.leaves import Bytes, Leaf
from pilot.checkpoint.names import Age
from pilot.checkpoint.openfile import OpenFile
from pilot.checkpoint.shards import Rows
from pilot.checkpoint.structure import DatasetShare, RowRange, Structure, rows_of
from pilot.checkpoint.tree import Encoded
from pilot.core.errors import CheckpointError, UserError

CUT_BYTES = 1024 * 1024
"""Datasets smaller than this are not cut into rows."""

_TEXT_STEP_BYTES = 16 * 1024
"""The text is padded with spaces to a multiple of this, so that its length, and thus the layout, rarely changes."""

_HEADER = (
    DatasetSlot(structure.GENERATION, "<i8", ()),
    DatasetSlot(structure.STEP, "<i8", ()),
    DatasetSlot(structure.DIGEST, layout.TEXT, (rawio.DIGEST_CHARACTERS,)),
)


@dataclass(frozen=True, slots=True)
class Piece:
    """Rows of an array in the file to be published, and their description."""

    slot: DatasetSlot
    data: Bytes
    share: DatasetShare


def state(directory: Path, age: Age, state: Mapping[str, Any] | Encoded, uid: str) -> int:
    """Publish ``state`` as one file; returns its size in bytes."""
    encoded = tree.encode(state)
    if shard := next((leaf for leaf in encoded.leaves if leaf.rows and leaf.rows.full_shape != leaf.shape), None):
        raise CheckpointError(f"'{shard.path}' is a shard, and one process cannot save the others'")
    pieces = [_piece(leaf, 0, rows_of(leaf.shape), "") for leaf in encoded.leaves]
    return _file(directory / names.checkpoint_name(*age), _about(age, 0, 0, "", encoded, pieces), pieces, uid)


def part(
    directory: Path,
    age: Age,
    part: int,
    parts: int,
    state: Mapping[str, Any] | Encoded,
    shared: Callable[[str], bool],
    uid: str,
) -> int:
    """Publish share ``part`` of ``parts`` of ``state``; returns its size in bytes. See :func:`~.store.write_part`."""
    if not 0 <= part < parts:
        raise UserError(f"part {part} of {parts} does not exist; parts are numbered from 0")
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
    about = _about(age, part, parts, _checksum(common, digests), encoded, pieces)
    return _file(directory / names.part_name(*age, part, parts), about, pieces, uid, linked=False)


def index(directory: Path, age: Age, parts: int, uid: str) -> int:
    """Publish the index of the parts in ``directory``; returns the checkpoint's total size in bytes.

    Raises
    ------
    CheckpointError : a part is missing, or the parts do not make up one state
    """
    paths = [directory / names.part_name(*age, part, parts) for part in range(parts)]
    abouts = [_read(path, uid) for path in paths]
    for path, about in zip(paths, abouts, strict=True):
        if about.shared_checksum != abouts[0].shared_checksum:
            raise CheckpointError(
                f"{path.name}: it differs from part 0 in what the ranks share (parameters, optimizer): no "
                f"checkpoint was made of step {age.step}"
            )
    about = replace(abouts[0], datasets=_merge((path.name, about) for path, about in zip(paths, abouts, strict=True)))
    for name, share in about.datasets.items():
        if not share.is_complete:
            raise CheckpointError(f"no checkpoint was made of step {age.step}: no part has some rows of '{name}'")
    size = _file(directory / names.checkpoint_name(*age), about, (), uid)
    return size + sum(path.stat().st_size for path in paths)


def _file(path: Path, about: Structure, pieces: Sequence[Piece], uid: str, *, linked: bool = True) -> int:
    """Publish ``pieces`` and the text of ``about`` as ``path``; returns its size in bytes.

    ``uid`` is the trainer's. ``linked``: include links for the other files and names in ``about``. A part has none,
    because their targets may be elsewhere.
    """
    text = _padded(about.to_json())
    texts = (
        DatasetSlot(structure.TEXT, layout.TEXT, text.shape),
        DatasetSlot(structure.OFFSETS, "<i8", (len(about.offsets),)),
    )
    slots = (*_HEADER, *texts, *(piece.slot for piece in pieces))
    elsewhere = tuple((name, share) for name, share in about.datasets.items() if share.pieces[0].file)
    links = (tuple(about.aliases.items()), elsewhere) if linked else ((), ())
    with rawio.published(path, about.step) as fd:
        skeleton = layout.skeleton(FileLayout(slots, *links, uid))
        offsets = skeleton.starts[-len(pieces) :] if pieces else about.offsets
        own = [_bytes(about.generation), _bytes(about.step), _digest(text), text, _bytes(*offsets)]
        layout.write(fd, skeleton, [*own, *(piece.data for piece in pieces)])
    return skeleton.size


def _about(age: Age, part: int, parts: int, checksum: str, encoded: Encoded, pieces: Iterable[Piece]) -> Structure:
    table = {piece.slot.path: piece.share for piece in pieces}
    return Structure(*age, part, parts, checksum, encoded.tree, table, encoded.aliases)


def _padded(text: bytes) -> Bytes:
    return np.frombuffer(text.ljust(-(-len(text) // _TEXT_STEP_BYTES) * _TEXT_STEP_BYTES), np.uint8)


def _digest(text: Bytes) -> Bytes:
    return np.frombuffer(rawio.digest(text).encode(), np.uint8)


def _bytes(*numbers: int) -> Bytes:
    return np.array(numbers, "<i8").view(np.uint8)


def _piece(leaf: Leaf, start: int, stop: int, checksum: str) -> Piece:
    """Rows [start, stop) of ``leaf``; ``checksum`` is the complete leaf's, if known."""
    first = leaf.rows.first if leaf.rows is not None else 0
    share = DatasetShare(leaf.dtype, leaf.rows.full_shape if leaf.rows is not None else leaf.shape, ())
    rows = share.piece_shape(RowRange("", start, stop, ""))
    data = leaf.data[start * share.row_bytes : stop * share.row_bytes]
    digest = checksum if checksum and len(data) == leaf.size else rawio.digest(data)
    written = RowRange("", first + start, first + stop, digest)
    return Piece(DatasetSlot(leaf.path, leaf.dtype, rows), data, replace(share, pieces=(written,)))


def _checksum(leaves: Sequence[Leaf], digests: Mapping[str, str]) -> str:
    """A checksum of all names, types, shapes and bytes."""
    rows = [[leaf.path, leaf.dtype, leaf.shape, digests[leaf.path]] for leaf in leaves]
    return rawio.digest(np.frombuffer(json.dumps(rows).encode(), np.uint8))


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
    """Return the number of rows that begin before byte ``bound`` of the leaf."""
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
    if start == stop and rows.full_shape[0]:
        return None
    own = Rows(rows.full_shape, rows.first + start, stop - start)
    return Leaf(leaf.path, leaf.dtype, (own.count, *leaf.shape[1:]), leaf.source[start:stop], own)
