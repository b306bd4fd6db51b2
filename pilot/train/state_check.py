"""Refuses values that cannot be saved or sent as soon as they are seen, and names their place in the script's notation.
So this also happens when a script runs alone, and not only when a node joins or a checkpoint is due.
"""

from __future__ import annotations

import time

from torch import nn

from pilot.core.errors import UserError
from pilot.train.state import encoded
from pilot.train.training import Training

_PAUSE = 1000
"""The time between two checks of ``session.state``, in multiples of a check's duration, so that checks take 0.1% of the
time."""


class StateCheck:
    """When a session checks.

    The whole state (model, optimizer, scheduler, ``session.state``) is checked when ``session.epochs`` begins, before
    the second step (an optimizer has no state before the first) and at the end of each epoch; ``session.state`` also
    before an evaluation, and before steps as often as the cost is negligible. Checkpoints and transfers check what they
    use.
    """

    def __init__(self, training: Training) -> None:
        self._training = training
        self._names: dict[str, set[str]] = {}
        self._steps = 0
        self._due_s = 0.0

    def whole(self) -> None:
        """Check everything that would be saved and sent now, and ``session.state`` (at the end of an epoch it is saved
        later)."""
        self.user()
        self._training.encoded()
        self._training.trained.check_model()
        self._check_tracked()

    def user(self) -> None:
        """Check ``session.state``."""
        encoded({"user": self._training.user})

    def _check_tracked(self) -> None:
        """Check that tracked modules have not created parts later: a node without these could not load the state."""
        modules = {name: one for name, one in self._training.tracked.items() if isinstance(one, nn.Module)}
        for name, module in modules.items():
            now = set(module.state_dict())
            if changed := sorted(now ^ self._names.setdefault(name, now)):
                raise UserError(
                    f"the names in the state_dict() of the tracked object {name!r} have changed since the loop began"
                    f" ({changed[0]}): nodes that join later could not load it. Create all of it before the loop"
                )

    def before_step(self) -> None:
        """Check before a step, if it is time."""
        self._steps += 1
        began_s = time.monotonic()
        if self._steps == 2:
            self.whole()
        elif began_s >= self._due_s:
            self.user()
            now_s = time.monotonic()
            self._due_s = now_s + _PAUSE * (now_s - began_s)
