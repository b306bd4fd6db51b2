"""The group of ranks that train together, as the session uses it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace

import numpy as np

from pilot.train.alike.newcomers import Newcomers
from pilot.train.alike.next_step import Keep, NextSteps, discard
from pilot.train.data.sampler import StepShare
from pilot.train.gradients.step_words import Words
from pilot.train.node.membership import Membership
from pilot.train.ranks.reporter import Metrics
from pilot.train.state.progress import LineageRow
from pilot.train.state.shares import MOST_TIMED
from pilot.train.state.training import Training

_ALONE = Membership(generation=0, rank=0, size=1)


class RankGroup:
    """A group of one rank that never changes, for a script that runs alone, under plain ``python``. Groups of several
    ranks override its methods.

    ``revision`` changes when the group does, and when a step is void; ``newcomers``: the group's newcomers when it
    began; ``next_steps``: compares the steps after checkpoints; ``own_s``: how long this rank computed for the step
    before, 0: unknown; ``confirmed``: the generation in which its state last was.

    Parameters
    ----------
    training : the session's state
    resized : called with the number of ranks when a group has begun, with its state
    keep : saves the sketches of a checkpoint's next step beside it
    """

    revision = 0
    newcomers = Newcomers()
    own_s = 0.0
    confirmed = 0

    def __init__(self, training: Training, resized: Callable[[int], None], keep: Keep = discard) -> None:
        self.next_steps = NextSteps(training, keep)
        self._resized = resized
        self._entered = False
        #: called when ranks have a new group, before they share a state
        self.regroup: Callable[[Membership], None] = lambda _group: None
        #: makes the state that of the last round which is held, while it is saved
        self.as_held: Callable[[], AbstractContextManager[None]] = nullcontext

    @property
    def is_over(self) -> bool:
        """Whether the script's loop is over, and the other ranks are gone."""
        return False

    def enter(self) -> Membership:
        """Return the group in force, after waiting for one. (Also alone, the first call runs ``resized``.)"""
        if not self._entered:
            self._resized(_ALONE.size)
            self._entered = True
        return _ALONE

    def everyone(self, member: Membership) -> Membership:
        """Return a step's ``member`` as a place among the ranks of all nodes; in rounds a step is of one node."""
        return member

    def attach(self) -> None:
        """Use the session's new exchanges from now on; called on all ranks, between two steps."""

    def select(self, number: int) -> list[int]:
        """Select the exchange of the following gradients; return the selections of all ranks, by rank. Called before
        each sum if there are several exchanges. Raises :class:`~pilot.comm.channel.PeerGone` if the group broke.
        """
        return [number]

    def ring(self) -> None:
        """Note that the next bucket of the step's gradients is full."""

    def words(self, loss: float) -> Words:
        """Return the words that this rank sends with its step."""
        return self._with_time(Words.of(0, False, loss), self.enter())

    def _with_time(self, words: Words, group: Membership) -> Words:
        times = np.zeros(group.size if group.size <= MOST_TIMED else 0)
        times[group.rank : group.rank + 1] = self.own_s
        return replace(words, times=times)

    def summed(self) -> bool:
        """Wait for the sums of this step; return False if they will not arrive."""
        return True

    def applied(self, words: Words, share: StepShare, metrics: Metrics) -> None:
        """Report that a step was applied; ``words`` are the sums over the ranks."""

    def settle(self) -> None:
        """Do what waits for a safe point, after a step: the script asks for the next batch, or the epoch is over."""

    def gather(self, row: list[int]) -> list[list[int]]:
        """Return the rows of all ranks, of equal length, by rank. Called between two steps; also a safe point.

        Raises :class:`~pilot.comm.channel.PeerGone` if the group broke or changed here; then no rank uses the rows.
        """
        return [row]

    def rows(self, row: list[int]) -> list[list[int]]:
        """Like :meth:`gather`, but no safe point: the group does not pause here."""
        return [row]

    def opened(self, number: int, *, ends: bool) -> None:
        """Note that a round begins, which ends for all nodes when this one closes it, if it ``ends``. These calls are
        for rounds only (:mod:`pilot.train.rounds.rounds`).
        """

    def is_asked(self, number: int) -> bool:  # noqa: ARG002  # for overrides
        """Return whether round ``number`` is to be closed: other nodes have closed it, or the group is to change, to
        pause or to save. Called between inner steps.
        """
        return False

    @property
    def is_lost(self) -> bool:
        """Whether the group is gone, and no other has begun."""
        return False

    def held(self, words: Words, rows: Sequence[LineageRow], seconds: float, metrics: Metrics) -> None:
        """Report that a round is held, which took ``seconds`` and committed ``rows``; ``words`` are its sums."""

    def hand_over(self, giver: int, takers: Sequence[int]) -> None:
        """Give the state of rank ``giver`` to ``takers``; called on all ranks. Raises like :meth:`gather`."""

    def distrust(self, step: int) -> str:  # noqa: ARG002  # for overrides
        """Set aside checkpoints after ``step``, for no run to resume from; return a clause on the newest one left."""
        return "there is no checkpoint"

    def remark(self, text: str) -> None:
        """Show the user ``text``, which is the same on all ranks."""

    def rested(self, seconds: float) -> None:
        """Note that the script spent ``seconds`` without steps, for its own reasons."""

    def finish(self, metrics: Metrics) -> None:
        """Report the end of the loop, and return when the worker is released."""
