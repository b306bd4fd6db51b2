"""Describes a checkpoint without loading it: reads only the structure, not the arrays."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pilot.checkpoint import reader, tree


@dataclass(frozen=True, slots=True)
class DatasetRow:
    """One dataset."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    bytes: int


@dataclass(frozen=True, slots=True)
class Description:
    """A checkpoint. ``files`` are its parts, or itself; ``values`` are the numbers, strings and small lists in it."""

    path: Path
    generation: int
    step: int
    files: tuple[Path, ...]
    bytes: int
    written_s: float
    datasets: tuple[DatasetRow, ...]
    aliases: dict[str, str]
    values: dict[str, Any]


def describe(path: Path) -> Description:
    """Describe the checkpoint at ``path``; :class:`CheckpointError` if its structure is damaged."""
    with reader.opened(path) as (_, structure):
        shares = structure.datasets.items()
        state = tree.decode(structure.tree, lambda _, name: _Array(name))
        names = sorted({piece.file for _, share in shares for piece in share.pieces if piece.file})
        files = tuple(path.parent / name for name in names) or (path,)
        size = sum(file.stat().st_size for file in {path, *files} if file.exists())
        written_s = path.stat().st_mtime
    return Description(
        path,
        structure.generation,
        structure.step,
        files,
        size,
        written_s,
        tuple(DatasetRow(name, share.dtype, share.shape, share.rows * share.row_bytes) for name, share in shares),
        dict(structure.aliases),
        dict(_values("", state)),
    )


@dataclass(frozen=True, slots=True)
class _Array:
    name: str


def _values(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    """(path, value) of everything that is not an array; a list or tuple without arrays counts as one value."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _values(f"{path}/{key}" if path else str(key), item)
    elif isinstance(value, list | tuple) and not all(_is_plain(item) for item in value):
        for number, item in enumerate(value):
            yield from _values(f"{path}/{number}", item)
    elif not isinstance(value, _Array):
        yield path, value


def _is_plain(value: Any) -> bool:
    return not isinstance(value, _Array | dict | list | tuple)
