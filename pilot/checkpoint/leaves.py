"""Converts the leaves of a state (tensors, arrays, bytes) to contiguous bytes in C order, and back."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

import numpy as np
import torch
from torch.nn.parameter import is_lazy

from pilot.checkpoint import dtypes
from pilot.checkpoint.shards import Rows, local_of

Bytes = np.ndarray[Any, np.dtype[np.uint8]]
Source = torch.Tensor | np.ndarray[Any, Any]


@dataclass(frozen=True, eq=False)
class Leaf:
    """A tensor or an array of the state, with its path. Nothing is copied until its bytes are requested. ``rows``:
    which rows these are, if other processes have the others.
    """

    path: str
    dtype: str
    shape: tuple[int, ...]
    source: Source
    rows: Rows | None = None

    @property
    def size(self) -> int:
        """Its size in bytes."""
        return prod(self.shape) * dtypes.itemsize(self.dtype)

    @cached_property
    def data(self) -> Bytes:
        """All its bytes, shape (size,); the source's own memory if that is on the CPU and in C order."""
        return _tensor_bytes(self.source) if isinstance(self.source, torch.Tensor) else _array_bytes(self.source)

    def write(self, target: Bytes) -> None:
        """Copy its bytes to ``target``, shape (size,), in a single copy, wherever they are and in whatever order."""
        if not len(target):
            return
        into = shaped(self.dtype, self.shape, target)
        if isinstance(self.source, torch.Tensor):
            into.copy_(self.source)
        else:
            into[...] = self.source


def shaped(dtype: str, shape: tuple[int, ...], flat: Bytes) -> Any:
    """The tensor or array with the bytes ``flat``; a view."""
    if not dtypes.is_torch(dtype):
        return flat.view(dtype).reshape(shape) if len(flat) else np.empty(shape, dtype)
    kind = dtypes.torch_dtype(dtype)
    return torch.frombuffer(flat, dtype=kind).view(shape) if len(flat) else torch.empty(shape, dtype=kind)


def of_kind(kind: str, array: Any) -> Any:
    """The value of a leaf of this ``kind``: tensor, array, bytes or bytearray."""
    match kind:
        case "tensor" | "array":
            return array
        case "bytes":
            return array.tobytes()
        case "bytearray":
            return bytearray(array.tobytes())
    raise ValueError(f"there is no kind of value {kind!r}")


class Ties:
    """Recognises tensors that view the same memory in the same way (tied parameters), and identical arrays."""

    def __init__(self) -> None:
        self._known: dict[int, list[tuple[Source, Any]]] = {}

    def of(self, source: Source) -> Any:
        """Return the note of ``source`` or of a tensor tied to it; None: there is none yet."""
        known = self._known.get(_address(source), ())
        return next((noted for other, noted in known if other is source or _is_same_view(other, source)), None)

    def note(self, source: Source, what: Any) -> None:
        """Note ``what``; ``source`` is kept alive with it, so that its address is not reused."""
        self._known.setdefault(_address(source), []).append((source, what))


def _address(source: Source) -> int:
    return (local_of(source).data_ptr() if isinstance(source, torch.Tensor) else 0) or id(source)


def _is_same_view(a: Source, b: Source) -> bool:
    if not isinstance(a, torch.Tensor) or not isinstance(b, torch.Tensor):
        return False
    return _view(local_of(a)) == _view(local_of(b))


def _view(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tensor.device, tensor.dtype, tensor.shape, tensor.stride(), tensor.is_conj(), tensor.is_neg()


def why_no_tensor(tensor: torch.Tensor) -> str | None:
    """Why the bytes of ``tensor`` cannot be stored, and what to do; None if they can."""
    kind = type(tensor)
    if kind is not torch.Tensor and is_lazy(tensor):
        return "is a lazy parameter without a shape yet: run the model once first"
    if kind is not torch.Tensor and kind.__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
        return f"is a {kind.__name__}, which has no bytes of its own: store its plain tensors"
    if tensor.is_quantized:  # checked first, because torch crashes on views of such a tensor
        return "is a quantized tensor: store tensor.int_repr() with its scale and zero point, or tensor.dequantize()"
    if tensor.layout is not torch.strided or tensor.is_nested:
        return f"is a {'nested' if tensor.is_nested else 'sparse'} tensor ({tensor.layout}): store a dense one"
    if tensor.is_meta:
        return "is a tensor on the device 'meta', which has no data"
    return None if dtypes.is_copyable(tensor.dtype) else f"is a tensor of {tensor.dtype}, which torch cannot copy"


def why_no_array(array: np.ndarray[Any, Any]) -> str | None:
    """Why ``array`` cannot be stored, and what to do; None if it can."""
    kind = array.dtype
    if kind.hasobject or kind.fields or not kind.itemsize:
        return f"is a numpy array of {kind}: store arrays of numbers or of text with a fixed length"
    return None


def bytes_in_line(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of its numbers, on its device."""
    plain = tensor.detach().resolve_conj().resolve_neg().contiguous()
    line = plain.as_strided((plain.numel(),), (1,))  # view(-1) would keep the odd stride of a single element
    return line.view(torch.uint8)


def _tensor_bytes(tensor: torch.Tensor) -> Bytes:
    return bytes_in_line(tensor.cpu()).numpy()


def _array_bytes(array: np.ndarray[Any, Any]) -> Bytes:
    flat = np.ascontiguousarray(array).reshape(-1)
    return flat.view(np.uint8) if flat.nbytes else np.empty(0, np.uint8)
