"""Tells of what a script does in its steps by the loss of its batch: ``plateau.step(loss.item())``, a learning rate
that falls when an average of losses no longer does, a loop that it leaves; and of what it keeps of that in
``session.state`` for the losses of other batches (the weights of its parts). Each rank has its own part of the batch,
and would train otherwise.

Read from the script's code, and so on a single node, too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import FrameType

from pilot.train.looks.turn import Turn
from pilot.train.script import loop_code, refusal
from pilot.train.script.bytecode import running_at
from pilot.train.script.step_uses import StepUses
from pilot.train.state.training import Training

_DIFFERS = (
    "has another part of the batch, so that ranks would differ and the trainer be stopped: compute it from what is the"
    " same on all ranks"
)


class OwnLoss:
    """Looks for one session. ``training``: what it trains."""

    def __init__(self, training: Training) -> None:
        self._training = training
        self._told = False

    def look(self, frames: Sequence[FrameType], uses_of: Callable[[], StepUses]) -> None:
        """Tell once. ``frames``: the running functions, from the one on with the session's loop; the last one steps;
        ``uses_of``: returns what the steps compute with.
        """
        given = set[str]()
        for frame in () if self._told else reversed(frames):
            heads = loop_code.heads(frame.f_code, running_at(frame))
            turn = Turn(frame, heads[-1] if heads else None, given, self._training.trained.named.values())
            if names := turn.decides_by():
                self._tell(names)
                return
            if names := turn.sets_options_by():
                self._tell_of_options(names)
                return
            if names := turn.changes_by_batch(turn.changes_parameters):
                self._tell_of_batch(names)
                return
            if names := turn.changes_by_batch(turn.changes_sums):
                self._tell_of_sums(names)
                return
            if keys := sorted(turn.keys_from_loss() & uses_of().keys):
                self._tell_of_state(keys)
                return
            if heads:  # what follows comes after the pass over the batches, see EpochSums
                return
            given = turn.given()

    def _tell(self, names: Sequence[str]) -> None:
        self._told = True
        refusal.note(
            f"the script changes how it trains, in its steps, by the loss of its batch ({', '.join(names)}): each rank"
            " has another part of the batch, so that ranks would differ and the trainer be stopped: use what"
            " session.evaluate returns"
        )

    def _tell_of_options(self, names: Sequence[str]) -> None:
        self._told = True
        refusal.note(
            "the script sets its learning rate, or another option, by its own batch, or by what it draws in a step"
            f" ({', '.join(names)}): each rank {_DIFFERS} (session.steps, the epoch's number, what session.evaluate"
            " returns)"
        )

    def _tell_of_batch(self, names: Sequence[str]) -> None:
        self._told = True
        refusal.note(
            f"the script changes parameters by its own batch ({', '.join(names)}), besides their gradients: each rank"
            f" {_DIFFERS} (the dataset, session.steps, what session.evaluate returns)"
        )

    def _tell_of_sums(self, names: Sequence[str]) -> None:
        self._told = True
        refusal.note(
            f"the script changes gradients by its own batch ({', '.join(names)}) after session.sum: each rank"
            f" {_DIFFERS} (the gradients that session.sum gives), or before session.sum, which takes the mean of what"
            " ranks have"
        )

    def _tell_of_state(self, keys: Sequence[str]) -> None:
        self._told = True
        names = ", ".join(f"session.state[{key!r}]" for key in keys)
        refusal.note(
            f"the script's losses depend on what it keeps of the losses of its own batches ({names}): each rank has"
            " another part of each batch, so that ranks would train with different ones: compute it from what is the"
            " same on all ranks (parameters, session.steps, what session.evaluate returns)"
        )
