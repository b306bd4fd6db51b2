"""What a script gives the session to keep: ``session.state`` and tracked objects. Compared between the ranks, by name.

Only one rank's travels and is saved. Parameters of tracked modules (an average, a teacher) must be the same on all
ranks, like the model's. Other values may differ, as a log of each rank's own losses does; the script is told of them,
because training may depend on them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from pilot.checkpoint import checksums
from pilot.checkpoint.tree import place
from pilot.train.state.training import Training


class HeldByScript:
    """One rank's. ``training``: has them."""

    def __init__(self, training: Training) -> None:
        self._training = training

    def parameters(self) -> dict[str, torch.Tensor]:
        """Those of tracked modules."""
        modules = {name: one for name, one in self._training.tracked.items() if isinstance(one, nn.Module)}
        return {
            _in_state(name, path): one for name, module in modules.items() for path, one in module.named_parameters()
        }

    def numbers(self) -> dict[str, int]:
        """Checksums of the other values, but for batch norm's statistics: 1 to 65521."""
        return {name: 1 + checksums.of_value(value) for name, value in self._values()}

    def _values(self) -> Iterator[tuple[str, Any]]:
        for key, value in self._training.user.items():
            yield place("session.state", [key]), value
        for name, one in self._training.tracked.items():
            without = _not_compared(one) if isinstance(one, nn.Module) else set()
            yield from ((_in_state(name, key), value) for key, value in one.state_dict().items() if key not in without)


def _in_state(tracked: str, key: str) -> str:
    return place(f"{tracked}.state_dict()", [key])


def _not_compared(module: nn.Module) -> set[str]:
    """What is compared elsewhere, or is each rank's own."""
    found = {name for name, _ in module.named_parameters(remove_duplicate=False)}
    for path, part in module.named_modules():
        if isinstance(part, _NormBase):
            found |= {f"{path}.{name}".lstrip(".") for name in part._buffers}
    return found
