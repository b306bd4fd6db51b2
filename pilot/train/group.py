"""The ranks that train together, as the session sees them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from pilot.train.membership import Membership
from pilot.train.reporter import Metrics
from pilot.train.sampler import StepShare
from pilot.train.step_words import Words


class RankGroup(Protocol):
    """Of an elastic trainer, or of a script by itself."""

    revision: int
    """Changes when the group does, and when a step is void."""

    def enter(self) -> Membership:
        """Be in a group; waits for one."""

    def ring(self) -> None:
        """A part of the step's gradients is full."""

    def words(self, loss: float) -> Words:
        """What this rank says with the step."""

    def summed(self) -> bool:
        """Whether the sums of this step came."""

    def applied(self, words: Words, share: StepShare, metrics: Metrics) -> None:
        """A step was applied; ``words`` are the sums."""

    def settle(self) -> None:
        """The safe point after a step: when the script comes for the next batch, or the epoch is over."""

    def gather(self, row: list[int]) -> list[list[int]]:
        """The rows of all ranks, equally long, by rank; between two steps, and a safe point as well.

        Raises :class:`~pilot.comm.channel.Gone` where the group broke, or changed here: nobody uses the rows then.
        """

    def hand_over(self, giver: int, takers: Sequence[int]) -> None:
        """Rank ``giver`` gives its state to ``takers``; on all ranks. Raises as :meth:`gather`."""

    def rested(self, seconds: float) -> None:
        """For so long now there was no step, and that was not because of the group."""

    def finish(self, metrics: Metrics) -> None:
        """The loop is over; returns when the worker is let go."""
