"""Names of torch's element types and of numpy's (``<f4``, its own notation). All are stored and sent bit for bit."""

from __future__ import annotations

import re
from functools import cache

import numpy as np
import torch

_TORCH = "torch."
_NUMPY = re.compile(r"[<>|][biufcmMSUV][0-9]{1,9}(\[[0-9]{0,9}[A-Za-zμ]{1,7}\])?")
_QUANTIZED = {torch.quint8, torch.qint8, torch.qint32, torch.quint4x2, torch.quint2x4}


@cache
def torch_name(dtype: torch.dtype) -> str:
    """``torch.bfloat16``."""
    return str(dtype)


def is_torch(name: str) -> bool:
    """Whether ``name`` names a torch type."""
    return name.startswith(_TORCH)


@cache
def torch_dtype(name: str) -> torch.dtype:
    """The torch type of that name; :class:`ValueError` if this version of torch has none."""
    dtype = getattr(torch, name.removeprefix(_TORCH), None)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"this torch ({torch.__version__}) has no type {name}")
    return dtype


@cache
def is_copyable(dtype: torch.dtype) -> bool:
    """Whether torch can copy elements of that type; it cannot for types smaller than a byte (uint4)."""
    try:
        torch.empty(1, dtype=dtype).clone()
    except (NotImplementedError, RuntimeError):
        return False
    return True


def check(name: str) -> None:
    """:class:`ValueError` if arrays of that type cannot be stored: an object's bytes would be an address."""
    if is_torch(name):
        if torch_dtype(name) in _QUANTIZED:
            raise ValueError(f"arrays of type {name} are not stored")
    elif not _NUMPY.fullmatch(name) or np.dtype(name).str != name:
        raise ValueError(f"there is no type {name!r}")


@cache
def itemsize(name: str) -> int:
    """Bytes of one element."""
    return torch_dtype(name).itemsize if is_torch(name) else np.dtype(name).itemsize
