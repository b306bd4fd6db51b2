"""Publishing one file: its structure, and the arrays that it describes."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pilot.checkpoint import layout, names, rawio, retention, structure, tree
from pilot.checkpoint.layout import DatasetSlot, FileLayout
from pilot.checkpoint.leaves import Bytes
from pilot.checkpoint.structure import DatasetShare, RowRange, Structure, rows_of
from pilot.checkpoint.tree import Encoded
from pilot.core.errors import CheckpointError

_TEXT_STEP_BYTES = 16 * 1024
"""The text is padded with spaces to a multiple of this, so that its length, and thus the layout, rarely changes."""

_HEADER = (
    DatasetSlot(structure.GENERATION, "<i8", ()),
    DatasetSlot(structure.STEP, "<i8", ()),
    DatasetSlot(structure.DIGEST, layout.TEXT, (rawio.DIGEST_CHARACTERS,)),
)


@dataclass(frozen=True, slots=True)
class Array:
    """An array in the file to be published."""

    slot: DatasetSlot
    data: Bytes


def publish(path: Path, about: Structure, arrays: Sequence[Array], uid: str, *, linked: bool = True) -> int:
    """Publish ``arrays`` and the text of ``about`` as ``path``; returns its size in bytes.

    ``uid`` is the trainer's. ``linked``: include links for the other files and names in ``about``. A part has none,
    because their targets may be elsewhere.
    """
    text = _padded(about.to_json())
    texts = (
        DatasetSlot(structure.TEXT, layout.TEXT, text.shape),
        DatasetSlot(structure.OFFSETS, "<i8", (len(about.offsets),)),
    )
    slots = (*_HEADER, *texts, *(array.slot for array in arrays))
    elsewhere = tuple((name, share) for name, share in about.datasets.items() if share.pieces[0].file)
    links = (tuple(about.aliases.items()), elsewhere) if linked else ((), ())
    what = FileLayout(slots, *links, uid)
    with rawio.published(path, about.step) as fd:
        retention.sweep(path.parent, os.fstat(fd).st_mtime)
        skeleton = layout.skeleton(what)
        offsets = skeleton.starts[-len(arrays) :] if arrays else about.offsets
        own = [_bytes(about.generation), _bytes(about.step), _digest(text), text, _bytes(*offsets)]
        layout.write(fd, skeleton, [*own, *(array.data for array in arrays)])
    return skeleton.size


def single(directory: Path, generation: int, step: int, state: Mapping[str, Any] | Encoded, uid: str) -> int:
    """Publish ``state`` as one file; returns its size in bytes."""
    encoded = tree.encode(state)
    if shard := next((leaf for leaf in encoded.leaves if leaf.rows and leaf.rows.whole != leaf.shape), None):
        raise CheckpointError(f"'{shard.path}' is a shard, and one process cannot save the others'")
    table = {
        leaf.path: DatasetShare(
            leaf.dtype, leaf.shape, (RowRange("", 0, rows_of(leaf.shape), rawio.digest(leaf.data)),)
        )
        for leaf in encoded.leaves
    }
    about = Structure(generation, step, 0, 0, "", encoded.tree, table, encoded.aliases)
    arrays = [Array(DatasetSlot(leaf.path, leaf.dtype, leaf.shape), leaf.data) for leaf in encoded.leaves]
    return publish(directory / names.checkpoint_name(generation, step), about, arrays, uid)


def _padded(text: bytes) -> Bytes:
    return np.frombuffer(text.ljust(-(-len(text) // _TEXT_STEP_BYTES) * _TEXT_STEP_BYTES), np.uint8)


def _digest(text: Bytes) -> Bytes:
    return np.frombuffer(rawio.digest(text).encode(), np.uint8)


def _bytes(*numbers: int) -> Bytes:
    return np.array(numbers, "<i8").view(np.uint8)
