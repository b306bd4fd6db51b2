"""The ranks that train together, as seen by the session."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pilot.train.alike.newcomers import Newcomers
from pilot.train.alike.next_step import Keep, NextSteps, discard
from pilot.train.data.sampler import StepShare
from pilot.train.gradients.step_words import Words
from pilot.train.node.membership import Membership
from pilot.train.ranks.reporter import Metrics
from pilot.train.state.training import Training

_ALONE = Membership(generation=0, rank=0, size=1)


class RankGroup:
    """A group of one that never changes: a script that runs alone, under plain ``python``. Groups of several ranks
    override what is different there.

    ``revision`` changes when the group does, and when a step is void; ``newcomers``: those of the group, when it began;
    ``next_steps``: steps after checkpoints.

    Parameters
    ----------
    training : the session's
    resized : called with the number of ranks when a group has begun, with its state
    keep : keeps what lies beside a checkpoint
    """

    revision = 0
    newcomers = Newcomers()

    def __init__(self, training: Training, resized: Callable[[int], None], keep: Keep = discard) -> None:
        self.next_steps = NextSteps(training, keep)
        self._resized = resized
        self._entered = False

    @property
    def is_over(self) -> bool:
        """Whether the script's loop is over, and the other ranks are no longer there."""
        return False

    def enter(self) -> Membership:
        """Enter a group; waits for one. (What must be there in a pool must be there alone, too.)"""
        if not self._entered:
            self._resized(_ALONE.size)
            self._entered = True
        return _ALONE

    def attach(self) -> None:
        """The session has new exchanges from now on; on all ranks, between two steps."""

    def select(self, number: int) -> list[int]:
        """The following gradients belong to this exchange; returns what all ranks have selected, by rank. Called before
        each sum if there are several exchanges. Raises :class:`~pilot.comm.channel.PeerGone` if the group broke.
        """
        return [number]

    def ring(self) -> None:
        """A part of the step's gradients is full."""

    def words(self, loss: float) -> Words:
        """What this rank sends along with the step."""
        return Words.of(0, False, loss)

    def summed(self) -> bool:
        """Whether the sums of this step arrived."""
        return True

    def applied(self, words: Words, share: StepShare, metrics: Metrics) -> None:
        """A step was applied; ``words`` are the sums."""

    def settle(self) -> None:
        """The safe point after a step: when the script comes for the next batch, or the epoch is over."""

    def gather(self, row: list[int]) -> list[list[int]]:
        """The rows of all ranks, of equal length, by rank; between two steps. Also a safe point.

        Raises :class:`~pilot.comm.channel.PeerGone` if the group broke or changed here; then no rank uses the rows.
        """
        return [row]

    def hand_over(self, giver: int, takers: Sequence[int]) -> None:
        """Rank ``giver`` gives its state to ``takers``; called on all ranks. Raises like :meth:`gather`."""

    def distrust(self, step: int) -> str:  # noqa: ARG002  # for those who save
        """Set aside what was saved after ``step``, so that nothing continues from it; returns what is left, in
        words."""
        return "there is no checkpoint"

    def remark(self, text: str) -> None:
        """The same on all ranks: something that the user should see."""

    def rested(self, seconds: float) -> None:
        """The script spent ``seconds`` without steps, not because of the group."""

    def finish(self, metrics: Metrics) -> None:
        """The loop is over; returns when the worker is released."""
