"""Which tracked modules change while a script trains: an average of the model, but not a teacher that is fixed."""

from __future__ import annotations

from torch import nn

from pilot.checkpoint import checksums
from pilot.train.state.training import Training


class Moving:
    """Looks for one session. ``training``: what it knows."""

    def __init__(self, training: Training) -> None:
        self._training = training
        self._first: dict[str, list[int]] = {}

    def modules(self) -> list[nn.Module]:
        """Those with other parameters than when it looked first."""
        modules = {name: one for name, one in self._training.tracked.items() if isinstance(one, nn.Module)}
        now = {name: checksums.of_tensors([*one.parameters()]) for name, one in modules.items()}
        self._first = now | self._first
        return [modules[name] for name, sums in now.items() if sums != self._first[name]]
