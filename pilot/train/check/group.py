"""One rank's group on a course, see :mod:`pilot.train.check.world`; what the session uses of it is
:class:`~pilot.train.ranks.group.RankGroup`. Sums are those that rank processes make.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec
import numpy as np

from pilot.comm.channel import Gone
from pilot.train.alike.newcomers import Newcomers
from pilot.train.check.records import Recorder
from pilot.train.check.world import Start
from pilot.train.data.sampler import StepShare
from pilot.train.gradients.exchanges import Exchanges
from pilot.train.gradients.step_words import Words
from pilot.train.node.membership import Membership
from pilot.train.ranks.group import RankGroup
from pilot.train.ranks.reporter import Metrics
from pilot.train.state.block import Packed, unpack
from pilot.train.state.identity import expect_same
from pilot.train.state.state_transfer import NOTHING, Holding, who_spreads
from pilot.train.state.training import Training


class Link(Protocol):
    """The world, as a rank reaches it; see there."""

    def arrive(self, holding: list[int], identity: dict[str, str]) -> Start:
        """See :meth:`World.arrive`."""

    def together(self, kind: str, block: bytes, meeting: bool, complete: bool) -> list[bytes]:
        """See :meth:`World.together`."""

    def wants(self, step: int, complete: bool) -> bool:
        """See :meth:`World.wants`."""

    def keep(self, block: bytes) -> None:
        """See :meth:`World.keep`."""

    def keep_next(self, block: bytes) -> None:
        """See :meth:`World.keep_next`."""

    def finish(self, block: bytes) -> bool:
        """See :meth:`World.finish`."""


class CourseGroup(RankGroup):
    """See the module.

    Parameters
    ----------
    link : to the world
    training, exchanges, resized : the session's
    recorder : of what is trained
    """

    def __init__(
        self,
        link: Link,
        training: Training,
        exchanges: Exchanges,
        resized: Callable[[int], None],
        recorder: Recorder | None = None,
    ) -> None:
        super().__init__(training, resized, lambda _generation, _step, block: link.keep_next(block))
        self.training = training
        self.member: Membership | None = None
        self._link = link
        self._exchanges = exchanges
        self._exchange = exchanges.each[0]
        self._recorder = recorder
        self._held = NOTHING
        self._keeps = self._in_step = False

    # --- what the session uses ---------------------------------------------------------------------------------------

    def enter(self) -> Membership:
        """Enter a group; waits for the next one if none is in force."""
        self._in_step = False
        if self.member is None:
            self._begin(self._link.arrive(self.training.holding(self._held).row(), dict(self.training.identity)))
        assert self.member is not None
        return self.member

    def attach(self) -> None:
        """The arena is looked up with each sum."""
        self._exchange = self._exchanges.each[0]

    def select(self, number: int) -> list[int]:
        """What all ranks selected."""
        rows = [int.from_bytes(row, "little") for row in self._together("select", number.to_bytes(8, "little"))]
        self._exchange = self._exchanges.each[number]
        return rows

    def summed(self) -> bool:
        """Add up the gradients of all ranks."""
        self._in_step = True
        if self._recorder is not None:
            self._recorder.summed()
        arena, is_open = self._exchange.arena, self._exchange.open
        try:
            rows = self._together("step", bytes(arena.memory) if is_open else b"")
        except Gone:
            return False
        summands = [np.frombuffer(row, np.uint8) for row in rows if row]
        for part in self._exchange.layout.parts if is_open and len(summands) > 1 else ():
            views = [np.frombuffer(row, part.dtype, part.count, part.offset) for row in summands]
            np.frombuffer(arena.memory, part.dtype, part.count, part.offset)[:] = np.sum(views, axis=0)
        return True

    def applied(self, words: Words, share: StepShare, metrics: Metrics) -> None:
        """Remember what the step said."""
        super().applied(words, share, metrics)
        self._in_step = False
        if self._recorder is not None:
            self._recorder.applied(words.loss, metrics())

    def settle(self) -> None:
        """The safe point after a step."""
        self._record()
        self._safe_point()

    def gather(self, row: list[int]) -> list[list[int]]:
        """The rows of all ranks."""
        if not self._in_step:  # in a step, whose gradients are compared, a real group writes later
            self._record()
            self._safe_point()
        return [msgspec.msgpack.decode(one) for one in self._together("gather", msgspec.msgpack.encode(row))]

    def hand_over(self, giver: int, takers: Sequence[int]) -> None:
        """The state of ``giver``."""
        self._hand_over("hand over", giver, takers)

    def finish(self, metrics: Metrics) -> None:  # noqa: ARG002  # the protocol's signature
        """Wait until all ranks have arrived here."""
        self.enter()
        if self._recorder is not None:
            self._recorder.ended(self.training)
        while not self._link.finish(travelled(self.training)):
            self.member = None
            self.enter()

    # --- its parts ---------------------------------------------------------------------------------------------------

    @property
    def _is_complete(self) -> bool:
        """Whether it has done what the script does since the last step; or it does it, at an epoch's beginning."""
        return not self.training.catch_up.behind or self.training.position.cursor == 0

    @property
    def _is_meeting(self) -> bool:
        return self.training.catch_up.meeting is not None

    def _begin(self, start: Start) -> None:
        expect_same(start.identities)
        if start.begin:
            self.training.restore(unpack(bytearray(start.begin)))
            self.next_steps.resumed(start.next_step)
        table = [Holding(*row) for row in start.table]
        spreading = who_spreads(table)
        self.newcomers = Newcomers.of(table, spreading, 1)
        if not start.begin and start.number == 1 and self._recorder is not None:
            self._recorder.starts(self.training)
        self.member = Membership(start.number, start.index, len(table))
        if spreading.takers:
            self._hand_over("state", spreading.root, spreading.takers)
        self.next_steps.group_begins(resumes=spreading.fresh and self.training.position.step > 0)
        self._held, self._keeps = start.number, start.keeps
        self.revision += 1
        self._exchanges.idle()
        self._exchange = self._exchanges.each[0]
        self._resized(len(table))

    def _hand_over(self, kind: str, giver: int, takers: Sequence[int]) -> None:
        assert self.member is not None
        rank = self.member.rank
        rows = self._together(kind, travelled(self.training) if rank == giver else b"")
        if rank in takers:
            self.training.restore(unpack(bytearray(rows[giver])))

    def _together(self, kind: str, block: bytes) -> list[bytes]:
        if self.member is None:
            raise Gone
        try:
            return self._link.together(kind, block, self._is_meeting, self._is_complete)
        except Gone:
            self.member = None
            raise

    def _record(self) -> None:
        if self._recorder is not None:
            self._recorder.settled(self.training)

    def _safe_point(self) -> None:
        """The state may be saved here. Not in a meeting between two steps of an epoch: what the script does between
        them would be lost.
        """
        position = self.training.position
        if not self._keeps or (self._is_meeting and position.cursor and not (position.at_end or position.stopped)):
            return
        if self._link.wants(position.step, self._is_complete):
            self.next_steps.saved(0)
            self._link.keep(travelled(self.training))


def travelled(training: Training) -> bytes:
    """Its state as another rank receives it."""
    return bytes(Packed(training.encoded()).to_bytes())
