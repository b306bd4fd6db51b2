"""Tells of gradients that a script computes after a batch's ``session.step``, and by which it changes what it trains
before the next batch: Sophia's estimate of the curvature, a step by hand. Nobody sums them over the ranks.

Whether they come from the batch, which is each rank's own, cannot be seen, so nothing is refused.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from pilot.checkpoint import checksums
from pilot.train.looks.spaced import Spaced
from pilot.train.script import refusal
from pilot.train.state.training import Training

_PARTS = 1000
"""Looks take one of so many parts of the time, but for the first ones."""
_FIRST_LOOKS = 4


class AfterStep:
    """Looks for one session. ``training``: what it knows."""

    def __init__(self, training: Training) -> None:
        self._training = training
        self._spaced = Spaced(_PARTS, _FIRST_LOOKS)
        self._before: list[int] = []
        self._told = training.sharding is not None

    def backward_ended(self) -> None:
        """A ``backward`` of the script's has returned, after the step."""
        if not (self._told or self._before) and self._spaced.is_due():
            with self._spaced.doing():
                self._before = checksums.of_tensors([*self._trained()])

    def batch_begins(self, *, first: bool) -> None:
        """The script gets the next batch, or the ``first`` one of an epoch: before that it may change anything."""
        before, self._before = self._before, []
        if before and not first and before != checksums.of_tensors([*self._trained()]):
            self._told = True
            refusal.note(
                "the script computes gradients after session.step, and changes parameters or optimizer.state by them"
                " before the next batch; nobody sums these over the nodes, and each has another part of the batch, so"
                " that ranks would differ and the trainer be stopped: compute them from what all ranks have (a fixed"
                " batch), or let the loss of the step have them"
            )

    def _trained(self) -> Iterator[torch.Tensor]:
        training = self._training
        yield from training.trained.trained().values()
        for optimizer in training.steppers.optimizers.values():
            for its in optimizer.state.values():
                held = its.values() if isinstance(its, dict) else ()
                yield from (one for one in held if type(one) is torch.Tensor and one.layout is torch.strided)
