"""Tensors that are made of others (sparse, nested, of a class of the script's own), seen as plain ones."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from pilot.checkpoint.leaves import why_no_tensor
from pilot.checkpoint.shards import is_sharded, local_of

_PLAIN = (torch.Tensor, nn.Parameter)
_COMPRESSED = {
    torch.sparse_csr: ("crow_indices", "col_indices"),
    torch.sparse_bsr: ("crow_indices", "col_indices"),
    torch.sparse_csc: ("ccol_indices", "row_indices"),
    torch.sparse_bsc: ("ccol_indices", "row_indices"),
}
_MKLDNN: torch.layout = torch._mkldnn  # type: ignore[attr-defined]  # torch has no types for it


def is_plain(value: Any) -> bool:
    """Whether it is a tensor of torch's own classes with all its numbers in a line of memory."""
    return type(value) in _PLAIN and value.layout is torch.strided and not value.is_nested and not value.is_meta


def has_shape(tensor: torch.Tensor) -> bool:
    """Whether it has a shape, and may be asked for it."""
    return not is_lazy(tensor) and not (tensor.is_nested and tensor.layout is torch.strided)


def parts_of(tensor: torch.Tensor) -> list[torch.Tensor]:
    """The plain tensors in which ``tensor`` has its numbers, views of its memory where there are any; none: nobody can
    read them, or it has none yet.
    """
    if is_plain(tensor):
        return [] if why_no_tensor(tensor) else [tensor]
    if is_lazy(tensor):
        return []
    if is_sharded(tensor):
        return parts_of(local_of(tensor))
    if tensor.is_nested:
        return _of_nested(tensor)
    if hasattr(type(tensor), "__tensor_flatten__"):
        names, _ = tensor.__tensor_flatten__()  # type: ignore[attr-defined]  # only some classes have it
        return [part for name in names for part in parts_of(getattr(tensor, name))]
    with torch.no_grad(), torch._C.DisableTorchFunctionSubclass():
        if tensor.layout is torch.sparse_coo:
            return [tensor._indices(), tensor._values()]
        if tensor.layout in _COMPRESSED:
            return [*(getattr(tensor, name)() for name in _COMPRESSED[tensor.layout]), tensor.values()]
        if tensor.layout is _MKLDNN:
            return [tensor.to_dense()]
        return [] if why_no_tensor(tensor) else [tensor.as_subclass(torch.Tensor)]


def _of_nested(tensor: torch.Tensor) -> list[torch.Tensor]:
    with torch.no_grad():
        if tensor.layout is torch.strided:
            return [tensor.values(), tensor._nested_tensor_size()]
        return [tensor.values(), tensor.offsets()]  # type: ignore[attr-defined]  # of those with the layout "jagged"
