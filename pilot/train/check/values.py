"""Values by name, as they are compared: numbers as they are, tensors as sketches (random projections, by which two can
be compared that were computed in different processes), anything else as text.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

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


def flatten(value: Any, name: str, into: Values, depth: int = 12) -> None:
    """The values in ``value`` by name."""
    if isinstance(value, torch.Tensor):
        into[name] = of_tensor(value)
    elif isinstance(value, np.ndarray) and value.dtype.kind in "fiubc":
        into[name] = of_tensor(torch.from_numpy(np.ascontiguousarray(value)))
    elif isinstance(value, bool | int | float | str) or value is None:
        into[name] = value if not isinstance(value, int) or abs(value) < 1 << 62 else str(value)
    elif isinstance(value, Mapping) and depth and len(value) < _LARGEST:
        for key, one in value.items():
            flatten(one, f"{name}[{key!r}]", into, depth - 1)
    elif isinstance(value, list | tuple) and depth and len(value) < _LARGEST:
        for number, one in enumerate(value):
            flatten(one, f"{name}[{number}]", into, depth - 1)
    elif isinstance(value, set | frozenset) and len(value) < _LARGEST:
        into[name] = str(sorted(map(repr, value)))


@torch.no_grad()
def of_tensor(tensor: torch.Tensor) -> Value:
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
