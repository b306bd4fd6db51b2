"""The script by itself, under plain ``python``: a group of one that never changes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pilot.train.membership import Membership
from pilot.train.sampler import StepShare
from pilot.train.step_words import Words
from pilot.train.training import Training

ALONE = Membership(generation=0, rank=0, size=1)


class Alone:
    """See :class:`~pilot.train.group.RankGroup`."""

    revision = 0

    def __init__(self, training: Training) -> None:
        self._training = training

    def enter(self) -> Membership:
        """At once."""
        return ALONE

    def ring(self) -> None:
        """Nobody listens."""

    def words(self, loss: float) -> Words:
        """Nothing but the loss."""
        return Words.of(0, False, loss)

    def summed(self) -> bool:
        """The sum over one rank is there."""
        return True

    def applied(self, words: Words, share: StepShare, metrics: Callable[[], dict[str, float]]) -> None:
        """Nobody needs to be told."""

    def settle(self) -> None:
        """Nothing changes."""

    def gather(self, row: list[int]) -> list[list[int]]:
        """One row."""
        return [row]

    def hand_over(self, giver: int, takers: Sequence[int]) -> None:
        """There is nobody else."""

    def rested(self, seconds: float) -> None:
        """Nobody asks how long a rescale takes."""

    def finish(self, metrics: Callable[[], dict[str, float]]) -> None:
        """Nobody needs to be told."""
