"""Publishing one file: its structure, and the arrays that it describes. Then what is obsolete is removed: older
checkpoints, orphaned parts, files of dead writers.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pilot.checkpoint import layout, names, rawio, reader, structure, tree
from pilot.checkpoint.layout import DatasetSlot, FileLayout
from pilot.checkpoint.leaves import Bytes
from pilot.checkpoint.names import Age, Temporary
from pilot.checkpoint.openfile import Damaged, OpenFile
from pilot.checkpoint.structure import DatasetShare, RowRange, Structure, rows_of
from pilot.checkpoint.tree import Encoded
from pilot.core.errors import CheckpointError, Unreadable
from pilot.host.private_folder import shown

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
        sweep(path.parent, os.fstat(fd).st_mtime)
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


_FOREIGN_IDLE_S = 600.0
"""A temporary file of another host, whose writer is invisible here, is dead if nothing was written for this long."""


@dataclass(frozen=True, slots=True)
class Retention:
    """What is kept: the last ``kept``, and the newest up to ``agreed_step``, because the ranks do not know yet that
    later ones hold the same state on all of them. Those of generations up to ``given_up`` are the user's to remove.
    """

    kept: int
    agreed_step: int | None = None
    given_up: int = 0


_read: dict[Path, Age] = {}
"""The newest checkpoint of each folder that this process has read in whole and found intact."""


def was_read(directory: Path, age: Age) -> None:
    """A checkpoint in ``directory`` was read in whole and is intact."""
    _read[shown(directory)] = age


def tidy(directory: Path, newest: Age, keep: Retention) -> None:
    """Remove what is older than ``newest``, which was just published, and not to be kept.

    An index is removed before its parts, so a listed checkpoint never lacks a part. One of another generation is
    removed only if it can be read now, and if a newer one has been read in whole: when it was loaded, or else
    ``newest`` is read back from the disk.

    Raises
    ------
    CheckpointError : ``newest`` cannot be read back
    """
    oldest = Age(keep.given_up + 1, 0)
    older = [entry for entry in names.checkpoints(directory) if oldest <= entry.age < newest]
    agreed = [newest, *(entry.age for entry in older)] if keep.agreed_step is not None else []
    spared = next((age for age in agreed if age.step <= (keep.agreed_step or 0)), None)
    obsolete = [entry for entry in older[keep.kept - 1 :] if entry.age != spared]
    known = _read.get(shown(directory), Age(0, 0))
    if any(known <= entry.age < Age(newest.generation, 0) for entry in obsolete):
        _read_back(directory / names.checkpoint_name(newest.generation, newest.step))
        was_read(directory, newest)
    for entry in obsolete:
        if entry.age.generation == newest.generation or _is_readable(entry.path):
            _remove(entry.path)
    living = {entry.age for entry in names.checkpoints(directory)}
    for one in [*names.parts(directory), *names.next_steps(directory)]:
        if oldest <= one.age < newest and one.age not in living:
            _remove(one.path)


def _read_back(path: Path) -> None:
    try:
        problems = reader.verify(path)
    except Unreadable as error:
        problems = [str(error)]
    if problems:
        raise CheckpointError(f"it was written, but cannot be read back: {problems[0]}; earlier checkpoints are kept")


def _is_readable(path: Path) -> bool:
    try:
        with OpenFile(path) as file:
            file.structure()
    except Unreadable:
        return False
    except Damaged:
        pass
    return True


def sweep(directory: Path, now_s: float) -> None:
    """Remove the temporary files of dead writers. ``now_s`` is the file system's time, not this host's."""
    for temporary in names.temporaries(directory):
        with suppress(OSError):
            if _is_dead(temporary, now_s):
                temporary.path.unlink()


def _is_dead(temporary: Temporary, now_s: float) -> bool:
    if temporary.host == socket.gethostname():
        return names.started_ticks(temporary.pid) != temporary.started
    return now_s - temporary.path.stat().st_mtime > _FOREIGN_IDLE_S


def _remove(path: Path) -> None:
    with suppress(OSError):  # a later checkpoint tries again; publishing must not fail because of old files
        path.unlink()
