"""HDF5's element types for those of torch and numpy."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import torch
from h5py import h5t

from pilot.checkpoint import dtypes

_NUMERIC_KINDS = frozenset("biufc")


@cache
def hdf5_type(name: str) -> Any:
    """The HDF5 type with the same bytes as in memory.

    bfloat16 becomes a 16-bit HDF5 floating-point type, which every HDF5 reader can convert to float32. Types unknown to
    both numpy and HDF5 (float8) are opaque, tagged with their name.
    """
    if name == "torch.bfloat16":
        return _bfloat16()
    dtype = _numpy_equivalent(name)
    if dtype is None or dtype.kind not in _NUMERIC_KINDS:
        return _opaque(name)
    return h5t.py_create(dtype, logical=True)


def _numpy_equivalent(name: str) -> np.dtype[Any] | None:
    if not dtypes.is_torch(name):
        return np.dtype(name)
    try:
        return torch.empty(0, dtype=dtypes.torch_dtype(name)).numpy().dtype
    except TypeError:
        return None


def _bfloat16() -> Any:
    kind = h5t.IEEE_F32LE.copy()
    kind.set_fields(15, 7, 8, 0, 7)  # sign bit; first bit and length of the exponent; of the mantissa
    kind.set_size(2)
    kind.set_ebias(127)
    return kind


def _opaque(name: str) -> Any:
    kind = h5t.create(h5t.OPAQUE, dtypes.itemsize(name))
    kind.set_tag(name.encode())
    return kind
