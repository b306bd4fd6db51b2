"""Element types: torch and numpy on one side, HDF5 on the other. All are stored bit for bit."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import torch
from h5py import h5t

_TORCH = "torch."
_NUMERIC_KINDS = frozenset("biufc")


def torch_name(dtype: torch.dtype) -> str:
    """``torch.bfloat16``."""
    return str(dtype)


def numpy_name(dtype: np.dtype[Any]) -> str:
    """``<f4``, in numpy's notation."""
    return dtype.str


def is_torch(name: str) -> bool:
    """Whether ``name`` names a torch type."""
    return name.startswith(_TORCH)


def torch_dtype(name: str) -> torch.dtype:
    """The torch type of that name; :class:`ValueError` where this torch has none."""
    dtype = getattr(torch, name.removeprefix(_TORCH), None)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"this torch ({torch.__version__}) has no type {name}")
    return dtype


def itemsize(name: str) -> int:
    """Bytes of one element."""
    return torch_dtype(name).itemsize if is_torch(name) else np.dtype(name).itemsize


@cache
def hdf5_type(name: str) -> Any:
    """The HDF5 type whose bytes are those in memory.

    bfloat16 becomes an HDF5 floating point type of 16 bits, which every HDF5 reader converts to float32 by itself.
    Types that neither numpy nor HDF5 know (float8) are opaque, tagged with their name.
    """
    if name == "torch.bfloat16":
        return _bfloat16()
    dtype = _numpy_equivalent(name)
    if dtype is None or dtype.kind not in _NUMERIC_KINDS:
        return _opaque(name)
    return h5t.py_create(dtype, logical=True)


def _numpy_equivalent(name: str) -> np.dtype[Any] | None:
    if not is_torch(name):
        return np.dtype(name)
    try:
        return torch.empty(0, dtype=torch_dtype(name)).numpy().dtype
    except TypeError:
        return None


def _bfloat16() -> Any:
    kind = h5t.IEEE_F32LE.copy()
    kind.set_fields(15, 7, 8, 0, 7)  # sign bit, exponent's first bit and bits, mantissa's first bit and bits
    kind.set_size(2)
    kind.set_ebias(127)
    return kind


def _opaque(name: str) -> Any:
    kind = h5t.create(h5t.OPAQUE, itemsize(name))
    kind.set_tag(name.encode())
    return kind
