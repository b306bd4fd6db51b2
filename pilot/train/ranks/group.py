"""The ranks that train together, as seen by the session: an elastic trainer's, or a script that runs alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from pilot.train.alike.newcomers import Newcomers
from pilot.train.alike.next_step import NextSteps, kept_nowhere
from pilot.train.data.sampler import StepShare
from pilot.train.gradients.step_words import Words
from pilot.train.node.membership import Membership
from pilot.train.ranks.reporter import Metrics
from pilot.train.state.training import Training


class RankGroup(Protocol):
    """The group of an elastic trainer, or of a script that runs alone."""

    revision: int
    """Changes when the group does, and when a step is void."""
    newcomers: Newcomers
    """Those of the group, when it began."""
    next_steps: NextSteps
    """Steps after checkpoints."""

    @property
    def is_over(self) -> bool:
        """Whether the script's loop is over, and the other ranks are no longer there."""

    def enter(self) -> Membership:
        """Enter a group; waits for one."""

    def attach(self) -> None:
        """The session has new exchanges from now on; on all ranks, between two steps."""

    def select(self, number: int) -> list[int]:
        """The following gradients belong to this exchange; returns what all ranks have selected, by rank. Called before
        each sum if there are several exchanges. Raises :class:`~pilot.comm.channel.Gone` if the group broke.
        """

    def ring(self) -> None:
        """A part of the step's gradients is full."""

    def words(self, loss: float) -> Words:
        """What this rank sends along with the step."""

    def summed(self) -> bool:
        """Whether the sums of this step arrived."""

    def sums_came(self) -> None:
        """Each parameter has the sum over the group as its gradient; the optimizer's step follows."""

    def applied(self, words: Words, share: StepShare, metrics: Metrics) -> None:
        """A step was applied; ``words`` are the sums."""

    def settle(self) -> None:
        """The safe point after a step: when the script comes for the next batch, or the epoch is over."""

    def gather(self, row: list[int]) -> list[list[int]]:
        """The rows of all ranks, of equal length, by rank; between two steps. Also a safe point.

        Raises :class:`~pilot.comm.channel.Gone` if the group broke or changed here; then no rank uses the rows.
        """

    def hand_over(self, giver: int, takers: Sequence[int]) -> None:
        """Rank ``giver`` gives its state to ``takers``; called on all ranks. Raises like :meth:`gather`."""

    def distrust(self, step: int) -> str:
        """Set aside what was saved after ``step``, so that nothing continues from it; returns what is left, in
        words."""

    def remark(self, text: str) -> None:
        """The same on all ranks: something that the user should see."""

    def rested(self, seconds: float) -> None:
        """The script spent ``seconds`` without steps, not because of the group."""

    def finish(self, metrics: Metrics) -> None:
        """The loop is over; returns when the worker is released."""


ALONE = Membership(generation=0, rank=0, size=1)


class Alone:
    """A script that runs alone, under plain ``python``: a group of one that never changes."""

    revision = 0
    newcomers = Newcomers()
    is_over = False

    def __init__(self, training: Training, resized: Callable[[int], None]) -> None:
        self.next_steps = NextSteps(training, kept_nowhere)
        self._resized = resized
        self._entered = False

    def enter(self) -> Membership:
        """At once, but what must be there in a pool must be there here, too."""
        if not self._entered:
            self._resized(ALONE.size)
            self._entered = True
        return ALONE

    def attach(self) -> None:
        """Nobody else sums."""

    def select(self, number: int) -> list[int]:
        """One rank."""
        return [number]

    def ring(self) -> None:
        """Nobody listens."""

    def words(self, loss: float) -> Words:
        """Nothing but the loss."""
        return Words.of(0, False, loss)

    def summed(self) -> bool:
        """The sum over one rank is already there."""
        return True

    def sums_came(self) -> None:
        """Nobody looks."""

    def applied(self, words: Words, share: StepShare, metrics: Metrics) -> None:
        """Nobody needs to be told."""

    def settle(self) -> None:
        """Nothing changes."""

    def gather(self, row: list[int]) -> list[list[int]]:
        """One row."""
        return [row]

    def hand_over(self, giver: int, takers: Sequence[int]) -> None:
        """There is nobody else."""

    def distrust(self, step: int) -> str:  # noqa: ARG002  # the protocol's signature
        """Nothing was saved."""
        return "there is no checkpoint"

    def remark(self, text: str) -> None:
        """The script's log has it."""

    def rested(self, seconds: float) -> None:
        """Nobody asks how long a rescale takes."""

    def finish(self, metrics: Metrics) -> None:
        """Nobody needs to be told."""
