"""The text in a file: what the file must contain, piece by piece, and the tree from which the state is rebuilt."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Annotated, Any, Literal

import msgspec

from pilot.checkpoint import dtypes, names
from pilot.checkpoint.tree import OWN_GROUP

FORMAT = 2
"""Raised with every incompatible change."""

FIELDS = {name: name for name in ("generation", "step", "part", "parts")} | {"layout": "shared_checksum"}
FIELDS |= {name: name for name in ("tree", "aliases")}
"""The names in the text, in order, and the corresponding names in :class:`Structure`."""

GENERATION = f"{OWN_GROUP}/generation"
STEP = f"{OWN_GROUP}/step"
TEXT = f"{OWN_GROUP}/structure"
DIGEST = f"{OWN_GROUP}/structure_xxh3_128"
OFFSETS = f"{OWN_GROUP}/offsets"


UID = "trainer_uid"
"""The attribute with the uid of the trainer whose state the file holds."""


@dataclass(frozen=True, slots=True)
class RowRange:
    """Rows [start, stop) of a dataset (along its first axis) that are in ``file``, under the same path.

    ``file`` is "" for the file itself. ``offset`` is where the rows begin in it, for readers without HDF5 (0: not
    known).
    """

    file: str
    start: int
    stop: int
    digest: str
    offset: int = 0


@dataclass(frozen=True, slots=True)
class DatasetShare:
    """Where each piece of a dataset is. ``shape`` is the complete dataset's."""

    dtype: str
    shape: tuple[int, ...]
    pieces: tuple[RowRange, ...]

    @property
    def rows(self) -> int:
        """Length of the first axis."""
        return rows_of(self.shape)

    @property
    def is_complete(self) -> bool:
        """Whether the pieces cover all of its rows."""
        ends = [0, *(piece.stop for piece in self.pieces)]
        return [piece.start for piece in self.pieces] == ends[:-1] and ends[-1] == self.rows

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

    ``shared_checksum`` covers everything that the ranks share (names, types, shapes and bytes); it is the same in all
    parts of a state ("" if there are no parts). In the text it is called ``layout``.
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
        """The offsets of all pieces."""
        return [piece.offset for share in self.datasets.values() for piece in share.pieces]

    def to_json(self) -> bytes:
        """The text, in ASCII, without the offsets, which are known only once the file is laid out."""
        rows = {
            path: [share.dtype, share.shape, [[p.file, p.start, p.stop, p.digest] for p in share.pieces]]
            for path, share in self.datasets.items()
        }
        fields = {name: getattr(self, field) for name, field in FIELDS.items()}
        return json.dumps({"format": FORMAT, **fields, "datasets": rows}, separators=(",", ":")).encode("ascii")

    @classmethod
    def from_json(cls, text: bytes, offsets: Iterable[int]) -> Structure:
        """Parse the text, with the offsets of all pieces; :class:`ValueError` if it is not valid."""
        plain = json.loads(text)
        if not isinstance(plain, dict) or plain.get("format") != FORMAT:
            raise ValueError(f"its format is not {FORMAT}: read it with the version of pilot that wrote it")
        found, following = msgspec.convert(plain, _Text), iter(offsets)
        datasets = {
            path: DatasetShare(dtype, shape, tuple(RowRange(*piece, next(following, 0)) for piece in pieces))
            for path, (dtype, shape, pieces) in found.datasets.items()
        }
        for path, share in datasets.items():
            _check(path, share)
        about = found.generation, found.step, found.part, found.parts, found.layout, found.tree
        return cls(*about, datasets, found.aliases)


Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


class _Text(msgspec.Struct, forbid_unknown_fields=True):
    """The text as JSON."""

    format: Literal[2]
    generation: Count
    step: Count
    part: Count
    parts: Count
    layout: str
    tree: Any
    aliases: dict[str, str]
    datasets: dict[str, tuple[str, tuple[Count, ...], tuple[tuple[str, Count, Count, str], ...]]]


def _check(path: str, share: DatasetShare) -> None:
    """Check that its type is known, and that its pieces are consecutive rows."""
    dtypes.check(share.dtype)
    if not path or "\0" in path:
        raise ValueError("a dataset has no name")
    if not share.pieces:
        raise ValueError(f"dataset '{path}' has no pieces")
    ends = [share.pieces[0].start, *(piece.stop for piece in share.pieces)]
    if any(piece.start != end for piece, end in zip(share.pieces, ends, strict=False)):
        raise ValueError(f"the pieces of '{path}' do not follow one another")
    if any(piece.stop < piece.start for piece in share.pieces) or ends[-1] > share.rows:
        raise ValueError(f"the pieces of '{path}' are not rows of it")
    if any(piece.file and not names.is_part(piece.file) for piece in share.pieces):
        raise ValueError(f"a piece of '{path}' is in a file that is not part of a checkpoint")


def rows_of(shape: tuple[int, ...]) -> int:
    """Length of the first axis; a scalar has one row."""
    return shape[0] if shape else 1
