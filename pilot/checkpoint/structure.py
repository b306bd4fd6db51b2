"""The text in a file: what the file must hold, piece by piece, and the tree that makes a state of it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

from pilot.checkpoint import dtypes
from pilot.checkpoint.tree import OWN_GROUP

FORMAT = 2
"""Raised with every incompatible change. Format 1 had no ``str``, ``str_``, ``bytes_`` and ``number`` in its tree."""

_READABLE = (1, 2)

FIELDS = {name: name for name in ("generation", "step", "part", "parts")} | {"layout": "shared_checksum"}
FIELDS |= {name: name for name in ("tree", "aliases")}
"""The names in the text, in its order, and those of :class:`Structure`."""

GENERATION = f"{OWN_GROUP}/generation"
STEP = f"{OWN_GROUP}/step"
TEXT = f"{OWN_GROUP}/structure"
DIGEST = f"{OWN_GROUP}/structure_xxh3_128"
OFFSETS = f"{OWN_GROUP}/offsets"


@dataclass(frozen=True, slots=True)
class RowRange:
    """Rows [start, stop) of a dataset (along its first axis) that lie in ``file``, under the same path.

    ``file`` is "" for the file itself. ``offset`` is where the rows begin in it, for who does not want to ask HDF5 (0:
    not known).
    """

    file: str
    start: int
    stop: int
    digest: str
    offset: int = 0


@dataclass(frozen=True, slots=True)
class DatasetShare:
    """What of one dataset lies where. ``shape`` is the whole dataset's."""

    dtype: str
    shape: tuple[int, ...]
    pieces: tuple[RowRange, ...]

    @property
    def rows(self) -> int:
        """Length of the first axis."""
        return rows_of(self.shape)

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        return dtypes.itemsize(self.dtype) * prod(self.shape[1:])

    def piece_shape(self, piece: RowRange) -> tuple[int, ...]:
        """The shape of the dataset that holds ``piece``."""
        return (piece.stop - piece.start, *self.shape[1:]) if self.shape else ()


@dataclass(frozen=True, slots=True)
class Structure:
    """Everything about a checkpoint, or about one part of it (``part`` of ``parts``; 0 of 0: a single file).

    ``shared_checksum`` is that of all that the ranks share, names, types, shapes and bytes; the parts of one state have
    the same ("" where there are none). In the text it is called ``layout``.
    """

    generation: int
    step: int
    part: int
    parts: int
    shared_checksum: str
    tree: Any
    datasets: Mapping[str, DatasetShare]
    aliases: Mapping[str, str]

    @property
    def offsets(self) -> list[int]:
        """Of all pieces."""
        return [piece.offset for share in self.datasets.values() for piece in share.pieces]

    def to_json(self) -> bytes:
        """The text, in ASCII; without the offsets, which follow from what is written."""
        rows = {
            path: [share.dtype, share.shape, [[p.file, p.start, p.stop, p.digest] for p in share.pieces]]
            for path, share in self.datasets.items()
        }
        fields = {name: getattr(self, field) for name, field in FIELDS.items()}
        return json.dumps({"format": FORMAT, **fields, "datasets": rows}, separators=(",", ":")).encode("ascii")

    @classmethod
    def from_json(cls, text: bytes, offsets: Iterable[int]) -> Structure:
        """Read it again, with the offsets of all pieces; :class:`ValueError` for another format."""
        fields = json.loads(text)  # takes lone surrogates, which format 1 had
        if fields.pop("format", None) not in _READABLE:
            raise ValueError(f"it is of none of the formats {_READABLE}: read it with the version that wrote it")
        rows, following = fields.pop("datasets"), iter(offsets)
        datasets = {
            path: DatasetShare(
                dtype, tuple(shape), tuple(RowRange(f, a, b, d, next(following, 0)) for f, a, b, d in pieces)
            )
            for path, (dtype, shape, pieces) in rows.items()
        }
        return cls(datasets=datasets, **{field: fields[name] for name, field in FIELDS.items()})


def rows_of(shape: tuple[int, ...]) -> int:
    """Length of the first axis; a scalar has one row."""
    return shape[0] if shape else 1
