"""Exports checkpoints to PyTorch's ``.pt`` and to safetensors, and describes them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch

from pilot.checkpoint import reader, store, tree
from pilot.core.errors import UserError
from pilot.host import output_files


def export(path: Path, output: Path, only: str = "") -> int:
    """Write the checkpoint at ``path``, or its part ``only``, to ``output``; returns the file's size in bytes.

    The name determines the format: ``.pt`` or ``.pth`` contains the state with numpy arrays as tensors, so that
    ``torch.load`` works with its defaults; ``.safetensors`` contains the tensors by their paths.

    Raises
    ------
    UserError : unknown file extension, no such part of the state, no tensor in it, or safetensors is not installed
    CheckpointError : the checkpoint does not verify
    """
    writers = {".pt": _write_pt, ".pth": _write_pt, ".safetensors": _write_safetensors}
    if output.suffix not in writers:
        raise UserError(f"{output.name}: unknown format; end the name in .pt or .safetensors, or add --dcp")
    state = _below(store.load(path).state, only, path)
    with output_files.output(output) as file:
        writers[output.suffix](state, file)
    return output.stat().st_size


def _write_pt(state: Any, file: BinaryIO) -> None:
    torch.save(_for_torch(state), file)


def _for_torch(value: Any) -> Any:
    """``value`` with only types that ``torch.load`` accepts by default: no numpy types, no frozenset."""
    if isinstance(value, np.ndarray):
        return _array_for_torch(value)
    if isinstance(value, np.generic):
        single = _array_for_torch(np.asarray(value))
        return single.item() if isinstance(single, torch.Tensor) else single
    if isinstance(value, dict):
        return type(value)({key: _for_torch(item) for key, item in value.items()})
    if isinstance(value, frozenset | set):
        return {_for_torch(item) for item in value}
    if type(value) in (list, tuple):
        return type(value)(_for_torch(item) for item in value)
    return value


def _array_for_torch(array: np.ndarray[Any, Any]) -> Any:
    """A tensor in native byte order, long doubles as doubles; of text and times, nested lists of text."""
    if array.dtype.kind not in "biufc":
        return array.astype(str).tolist() if array.dtype.kind in "mM" else array.tolist()
    kind = {"g": np.dtype(np.float64), "G": np.dtype(np.complex128)}.get(array.dtype.char, array.dtype)
    return torch.from_numpy(array.astype(kind.newbyteorder("="), copy=True))


def _write_safetensors(state: Any, file: BinaryIO) -> None:
    try:
        from safetensors.torch import save
    except ImportError:
        raise UserError("safetensors is not installed: pip install safetensors, or export to .pt") from None
    tensors = {name: tensor.clone() for name, tensor in _tensors("", state)}  # safetensors refuses shared memory
    if not tensors:
        raise UserError("there is no tensor to export")
    try:
        file.write(save(tensors))
    except (KeyError, ValueError) as error:
        raise UserError(f"safetensors cannot store this state: {error}; export to .pt") from error


def _below(state: Any, only: str, path: Path) -> Any:
    for key in filter(None, only.split("/")):
        if not isinstance(state, Mapping) or key not in (names := {str(name): name for name in state}):
            raise UserError(f"{path.name} has no '{only}'; pilot checkpoint show {path.name} lists its contents")
        state = state[names[key]]
    return state


def _tensors(path: str, value: Any) -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(value, torch.Tensor):
        yield path, value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _tensors(f"{path}/{key}" if path else str(key), item)
    elif isinstance(value, list | tuple):
        for number, item in enumerate(value):
            yield from _tensors(f"{path}/{number}", item)


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
