"""Refuses what cannot be saved or sent as soon as it is seen, naming its place as the script writes it.

So a script that runs by itself is refused as well, and not only when a node comes or a checkpoint is due.
"""

from __future__ import annotations

import time

from torch import nn

from pilot.core.errors import UserError
from pilot.train.state import encoded
from pilot.train.training import Training

_PAUSE = 1000
"""The time between two checks of ``session.state``, in durations of a check: checks take 0.1% of the time."""


class StateCheck:
    """When a session looks.

    The whole state (model, optimizer, scheduler, ``session.state``) is checked where ``session.epochs`` begins, before
    the second step (an optimizer has no state before the first) and at the end of each epoch; ``session.state`` also
    before an evaluation, and before steps, as often as costs nothing. A checkpoint and a transfer check what they take.
    """

    def __init__(self, training: Training) -> None:
        self._training = training
        self._names: dict[str, set[str]] = {}
        self._steps = 0
        self._due_s = 0.0

    def whole(self) -> None:
        """All that is saved and spread now, and ``session.state`` as it is (at an epoch's end that is saved later)."""
        self.user()
        self._training.encoded()
        self._training.trained.check_model()
        self._check_tracked()

    def user(self) -> None:
        """``session.state``."""
        encoded({"user": self._training.user})

    def _check_tracked(self) -> None:
        """A module that makes its parts later: one that has not made them could not load it."""
        modules = {name: one for name, one in self._training.tracked.items() if isinstance(one, nn.Module)}
        for name, module in modules.items():
            now = set(module.state_dict())
            if changed := sorted(now ^ self._names.setdefault(name, now)):
                raise UserError(
                    f"the state_dict() of what is tracked as {name!r} has not the names that it had when the loop began"
                    f" ({changed[0]}): nodes that join later could not load it. Create all of it before the loop"
                )

    def before_step(self) -> None:
        """Once per step."""
        self._steps += 1
        began_s = time.monotonic()
        if self._steps == 2:
            self.whole()
        elif began_s >= self._due_s:
            self.user()
            now_s = time.monotonic()
            self._due_s = now_s + _PAUSE * (now_s - began_s)
