"""Sums the gradients of a step over the group, and compares them before they are used."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch

from pilot.comm.channel import PeerGone
from pilot.core.errors import PilotError, UserError
from pilot.train.data.rehearsal import Rehearsal
from pilot.train.data.sampler import StepShare
from pilot.train.gradients.exchanges import Exchanges
from pilot.train.gradients.step_words import Words
from pilot.train.node.membership import Membership
from pilot.train.ranks.group import RankGroup
from pilot.train.state.stepper import Stepper
from pilot.train.state.training import Training
from pilot.train.steps.alarm import Alarm
from pilot.train.steps.comparison import Comparison
from pilot.train.steps.weights import Weights

_Result = TypeVar("_Result")


@dataclass
class StepSums:
    """Sums the gradients of one rank's steps, by parts of its :class:`~pilot.train.steps.step.Step`."""

    training: Training
    group: RankGroup
    exchanges: Exchanges
    alarm: Alarm
    comparison: Comparison
    weights: Weights
    #: returns whether this rank wants no step after the current one
    is_stopping: Callable[[], bool] = lambda: False
    #: returns whether the training's last step has this share, in a group of this size; the same on all ranks
    is_last: Callable[[StepShare, int], bool] = lambda _share, _size: False
    waited_s: float = 0.0  #: the total time of waits for sums

    def sum(
        self,
        steppers: Sequence[Stepper],
        share: StepShare,
        member: Membership,
        rehearsal: Rehearsal | None,
        loss: torch.Tensor | float,
    ) -> Words | None:
        """Replace the gradients of ``steppers`` by their sums, and return the summed words; None: the group broke."""
        position = self.training.position
        is_last = self.is_last(share, member.size)
        compares = not position.phase and self.training.outer is None  # rounds are compared at their ends
        checksum = self.alarm.checksum(position.step, member, is_last=is_last) if compares else 0
        words: Words | None = None
        for stepper in steppers:
            words = self._sum_of(stepper, loss, checksum, share)
            if words is not None and words.samples != share.total:
                raise PilotError(f"the ranks took {words.samples:.0f} samples in a step of {share.total}")
            if words is None or not self.alarm.compare(words, position.step, self.group, member.size):
                return None
            checksum = 0
        try:
            self._compare(steppers, rehearsal)
        except PeerGone:
            return None
        return words

    def _sum_of(self, stepper: Stepper, loss: torch.Tensor | float, checksum: int, share: StepShare) -> Words | None:
        number = self.exchanges.number(stepper)
        if self.training.steppers.by_name and not self._selected(number):
            return None
        exchange = self.exchanges.each[number]
        exchange.flush()
        own: dict[str, Any] = {"checksum": checksum, "checksum_squares": checksum * checksum, "samples": share.samples}
        own |= {"weight": self.weights.local, "stop": float(self.is_stopping())}
        exchange.finish(replace(self.group.words(float(loss)), **own))
        return self.weights.checked(exchange.take()) if self._waited(self.group.summed) else None

    def _selected(self, number: int) -> bool:
        """Select the exchange on all ranks; return False if the group broke. :class:`UserError` if ranks differ."""
        try:
            numbers = self._waited(lambda: self.group.select(number))
        except PeerGone:
            return False
        if other := next((rank for rank, one in enumerate(numbers) if one != numbers[0]), 0):
            names = [stepper.name for stepper in self.training.steppers]
            raise UserError(
                f"rank 0 steps {names[numbers[0]]!r} and rank {other} steps {names[numbers[other]]!r}: choose"
                " the optimizer only by values that are the same on all ranks (session.steps, session.state)"
            )
        return True

    def _compare(self, steppers: Sequence[Stepper], rehearsal: Rehearsal | None) -> None:
        """Compare the gradients with those of other ranks or of an earlier run."""
        difference = self.group.next_steps.summed(steppers)
        if self.group.next_steps.compares:
            self.comparison.with_earlier(difference, self.group)
        if rehearsal is not None:
            self.comparison.with_others(rehearsal, self.exchanges.parameters(steppers), self.group)

    def _waited(self, call: Callable[[], _Result]) -> _Result:
        began_s = time.monotonic()
        try:
            return call()
        finally:
            self.waited_s += time.monotonic() - began_s
