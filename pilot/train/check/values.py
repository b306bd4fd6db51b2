"""Values by name, as they are compared: numbers as they are, tensors as sketches (random projections, by which two can
be compared that were computed in different processes), anything else as text.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import nn

from pilot.train.gradients.sketch import projected

Value = list[float] | float | int | bool | str | None
"""A sketch: the norm, then the projections; a number; or anything else as text."""
Values = dict[str, Value]

REPORTED, VARIABLE, MODULE = "reported ", "variable ", "module "
"""How the names of values begin that are not the trained state's: what the script reports, and what its variables
hold."""
_LARGEST = 10_000
_SAMPLE = 1 << 16
"""Numbers of one tensor that are compared in each step."""


def is_declared(name: str) -> bool:
    """Whether a value of this name is the trained state's."""
    return not name.startswith((VARIABLE, REPORTED, MODULE))


def values_in(held: object, name: str) -> Values:
    """The values in ``held`` by name."""
    return {place: of(one) for place, one in leaves(held, name)}


def leaves(
    held: Any, name: str, depth: int = 12, enters: Callable[[object], bool] = lambda _: False
) -> Iterator[tuple[str, Any]]:
    """Yield the numbers, texts, arrays, tensors and modules in ``held`` by name. ``enters``: into which objects it
    looks, besides collections.
    """
    if isinstance(held, bool | int | float | str | np.ndarray | torch.Tensor | nn.Module) or held is None:
        yield name, held
    elif isinstance(held, set | frozenset) and len(held) < _LARGEST:
        yield name, str(sorted(map(repr, held)))
    elif depth:
        for place, one in _parts(held, enters):
            yield from leaves(one, f"{name}{place}", depth - 1, enters)


def of(leaf: Any) -> Value:
    """The value of one."""
    if isinstance(leaf, torch.Tensor):
        return _of_tensor(leaf)
    if isinstance(leaf, np.ndarray):
        numeric = leaf.dtype.kind in "fiubc"
        return _of_tensor(torch.from_numpy(np.ascontiguousarray(leaf))) if numeric else f"{leaf.dtype}"
    is_large = isinstance(leaf, int) and abs(leaf) >= 1 << 62
    return leaf if isinstance(leaf, bool | int | float | str | None) and not is_large else str(leaf)


def _parts(held: Any, enters: Callable[[object], bool]) -> Iterator[tuple[str, Any]]:
    if isinstance(held, Mapping | list | tuple):
        items = held.items() if isinstance(held, Mapping) else enumerate(held)
        yield from ((f"[{key!r}]", one) for key, one in list(items) if len(held) < _LARGEST)
    elif enters(held):
        yield from ((f".{key}", one) for key, one in list(getattr(held, "__dict__", {}).items()))


@torch.no_grad()
def _of_tensor(tensor: torch.Tensor) -> Value:
    """A sketch, or a checksum of what is compared exactly; a number alone is itself."""
    if tensor.layout != torch.strided or tensor.device.type == "meta":
        return f"{tensor.layout}"
    exact = _sampled(tensor.detach()).cpu()
    if exact.is_complex():
        exact = torch.view_as_real(exact.resolve_conj())
    if not exact.is_floating_point():
        numbers = exact.resolve_neg().contiguous().reshape(-1)
        checksum = zlib.crc32(numbers.view(torch.uint8).numpy().tobytes() if len(numbers) else b"")
        return f"{tuple(tensor.shape)} {checksum}"
    wide = exact.double().reshape(-1)
    return [float(wide.norm()), *projected(wide).tolist()] if len(wide) != 1 else float(wide)


def _sampled(tensor: torch.Tensor) -> torch.Tensor:
    """All numbers of a tensor; of a large one some, evenly spaced, so that a step's sketches take little time."""
    while tensor.numel() > _SAMPLE and tensor.dim():
        longest = max(range(tensor.dim()), key=tensor.shape.__getitem__)
        spacing = min(tensor.shape[longest], -(-tensor.numel() // _SAMPLE))
        tensor = tensor.movedim(longest, 0)[::spacing]
    return tensor
