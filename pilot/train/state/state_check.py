"""Refuses values that cannot be saved or sent as soon as they are seen, and names their place in the script's notation.
So this also happens when a script runs alone, and not only when a node joins or a checkpoint is due.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

from pilot.core.errors import UserError
from pilot.train.state.block import encoded
from pilot.train.state.training import Training

_PARTS_OF_STEPS = 1000
"""Checks of ``session.state`` before steps take one of so many parts of the time."""


class StateCheck:
    """When a session checks.

    The whole state (model, optimizer, scheduler, ``session.state``) is checked when ``session.epochs`` begins, and
    before the second step (an optimizer has no state before the first); ``session.state`` also before an evaluation,
    at an epoch's end, and before steps, as often as the cost is negligible. What copies or sends a state checks all of
    it.
    """

    def __init__(self, training: Training) -> None:
        self._training = training
        self._names: dict[str, set[str]] = {}
        self._steps = 0
        self._before_steps = Spaced(_PARTS_OF_STEPS)

    def whole(self) -> None:
        """Check everything that would be saved and sent now."""
        self.ours()
        self._training.encoded()
        self._training.trained.check_model()

    def user(self) -> None:
        """Check ``session.state``."""
        encoded({"user": self._training.user})

    def ours(self) -> None:
        """Check ``session.state``, and that tracked modules have not created parts later: a node without these could
        not load the state.
        """
        self.user()
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
        if self._steps == 2:
            self.whole()
        elif self._before_steps.is_due():
            with self._before_steps.doing():
                self.user()


class Spaced:
    """Due the ``first`` times, and then so rarely that it takes at most one of ``parts`` parts of the time: epochs may
    be as short as a step.
    """

    def __init__(self, parts: int, first: int = 0) -> None:
        self._parts = parts
        self._first = first
        self._due_s = 0.0

    def is_due(self) -> bool:
        """Whether it is time again."""
        return self._first > 0 or time.monotonic() >= self._due_s

    @contextmanager
    def doing(self) -> Iterator[None]:
        """Around what is done."""
        began_s = time.monotonic()
        yield
        now_s = time.monotonic()
        self._first -= 1
        self._due_s = max(now_s, self._due_s) + self._parts * (now_s - began_s)
