"""Periodic checkpoints: when one is due, and how the ranks of a group write it together.

They agree without extra messages, through two numbers that are summed with each step
(:mod:`pilot.train.gradients.step_words`):

1. ``save``: this rank could start a checkpoint after this step; the leader sets it only when one is due. If all set it,
   each copies its state after that step, and its saver's thread writes its part from the copy.
2. ``saved``: this rank's part is on disk (or could not be written). If all set it, the leader's saver publishes the
   index, which makes the parts a checkpoint; it notices if one is missing or has a different state.

If there is a regroup meanwhile, the checkpoint is abandoned: the next one is due at once, and its publication removes
the parts. A group of one rank, the leader of a group whose parts made no checkpoint, and the leader in rounds, at a
round's end, write the state as one file.
"""

from __future__ import annotations

import time

from pilot.train.alike.next_step import NextSteps
from pilot.train.gradients.step_words import Words
from pilot.train.node.membership import Membership
from pilot.train.ranks.saver import Saver
from pilot.train.state.training import Training


class Periodic:
    """Each rank has one; it is used only at safe points. ``interval_s``, between two checkpoints, may be set at any
    time; ``next_steps`` is notified of each.
    """

    def __init__(self, saver: Saver, training: Training, next_steps: NextSteps, interval_s: float) -> None:
        self._saver = saver
        self._training = training
        self._next_steps = next_steps
        self.interval_s = interval_s
        self._begun_s = time.monotonic()
        self._under_way: tuple[Membership, int] | None = None

    def begun(self) -> None:
        """Record that a checkpoint begins: the next one is due an interval later."""
        self._begun_s = time.monotonic()

    def may_save(self, group: Membership | None) -> bool:
        """Whether a checkpoint in parts could begin after this step."""
        if group is None or self._as_one_file(group) or self._in_parts(group) is not None or self._saver.busy:
            return False
        return group.rank != 0 or self._due()

    def has_saved(self, group: Membership | None) -> bool:
        """Whether this rank is done with its part of the current checkpoint."""
        return group is not None and self._in_parts(group) is not None and not self._saver.busy

    def stepped(self, group: Membership, words: Words) -> None:
        """Save, if all ranks can, after a step whose sums are ``words``."""
        step = self._in_parts(group)
        if step is None:
            self._begin(group, words)
        elif words.saved == group.size:
            self._under_way = None
            if group.rank == 0:
                self._saver.start_index(group, step)

    def abandon(self) -> None:
        """Give up the current checkpoint, because there will be no more steps."""
        if self._under_way is not None:
            self._under_way = None
            self._saver.drop_part()

    def _begin(self, group: Membership, words: Words) -> None:
        alone = group.rank == 0 and self._as_one_file(group) and self._due() and not self._saver.busy
        if words.save != group.size and not alone:
            return
        self.begun()
        self._next_steps.saved(group.generation)
        step, state = self._training.position.step, self._training.encoded()
        if words.save == group.size:
            self._under_way = group, step
            self._saver.start_part(group, step, state, self._training.shared())
        else:
            self._under_way = None
            self._saver.start(group.generation, step, state)

    def _in_parts(self, group: Membership) -> int | None:
        """The step of the checkpoint that ``group`` is writing together, if any. (Other groups' were abandoned.)"""
        return self._under_way[1] if self._under_way is not None and self._under_way[0] == group else None

    def _as_one_file(self, group: Membership) -> bool:
        """Whether one rank writes the complete state: also in rounds, since parts would be complete one round later. Of
        a sharded model no rank has it.
        """
        failed = self._saver.failed_in == group.generation and self._training.sharding is None
        return group.size == 1 or failed or self._training.outer is not None

    def _due(self) -> bool:
        given_up = self._under_way is not None
        return given_up or time.monotonic() - self._begun_s >= self.interval_s
