"""Refuses values that cannot be saved or sent as soon as they are seen, and names their place in the script's notation.
So this also happens when a script runs alone, and not only when a node joins or a checkpoint is due.
"""

from __future__ import annotations

from torch import nn

from pilot.core.errors import UserError
from pilot.train.state.block import encoded
from pilot.train.state.spaced import Spaced
from pilot.train.state.training import Training

_PARTS_OF_STEPS = 1000
"""Checks of ``session.state`` before steps take one of so many parts of the time."""
_PARTS_OF_EPOCHS = 100
"""So do checks at the end of an epoch, but for those of the first ones."""
_FIRST_EPOCHS = 8


class StateCheck:
    """When a session checks.

    The whole state (model, optimizer, scheduler, ``session.state``) is checked when ``session.epochs`` begins, before
    the second step (an optimizer has no state before the first) and at the end of epochs; ``session.state`` also before
    an evaluation, and before steps. Both as often as the cost is negligible. Checkpoints and transfers check what they
    use.
    """

    def __init__(self, training: Training) -> None:
        self._training = training
        self._names: dict[str, set[str]] = {}
        self._steps = 0
        self._before_steps = Spaced(_PARTS_OF_STEPS)
        self._after_epochs = Spaced(_PARTS_OF_EPOCHS, _FIRST_EPOCHS)

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
        if self._steps == 2:
            self.whole()
        elif self._before_steps.is_due():
            with self._before_steps.doing():
                self.user()

    def after_epoch(self) -> None:
        """Check at the end of an epoch, if it is time."""
        if self._after_epochs.is_due():
            with self._after_epochs.doing():
                self.whole()
