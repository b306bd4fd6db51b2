"""The group of one rank in a scenario: a :class:`~pilot.train.ranks.group.RankGroup` whose sums and messages go through
:mod:`pilot.train.check.world` instead of rank processes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

import msgspec
import numpy as np

from pilot.comm.channel import PeerGone
from pilot.train.alike.newcomers import Newcomers
from pilot.train.check.world import GroupStart, Member
from pilot.train.data.sampler import StepShare
from pilot.train.gradients.exchanges import Exchanges
from pilot.train.gradients.step_words import Words
from pilot.train.node.membership import Membership
from pilot.train.ranks.group import RankGroup
from pilot.train.ranks.reporter import Metrics
from pilot.train.state.block import Packed, unpack
from pilot.train.state.identity import Identity, expect_same
from pilot.train.state.state_transfer import NOTHING, Holding, who_spreads
from pilot.train.state.training import Training


class ScenarioGroup(RankGroup):
    """A rank's group, connected by ``link`` to its world; the other arguments come from the session."""

    def __init__(self, link: Member, training: Training, exchanges: Exchanges, resized: Callable[[int], None]) -> None:
        super().__init__(training, resized, lambda _generation, _step, block: link.save(b"", block))
        self.training = training
        self.member: Membership | None = None
        self._link = link
        self._exchanges = exchanges
        self._selected = 0
        self._held = NOTHING
        self._saves = self._in_step = False

    def enter(self) -> Membership:
        self._in_step = False
        if self.member is None:
            own = self.training.holding(self._held).row(), self.training.identity
            self._begin(self._link.arrive(msgspec.msgpack.encode(own)))
        assert self.member is not None
        return self.member

    def select(self, number: int) -> list[int]:
        rows = self._rows("select", [number])
        self._selected = number
        return [row[0] for row in rows]

    def summed(self) -> bool:
        """Add up the gradients of all ranks, as rank processes do. Return False if the group broke."""
        self._in_step = True
        exchange = self._exchanges.each[self._selected]
        arena = exchange.arena.memory
        try:
            rows = self._together("step", bytes(arena) if exchange.open else b"")
        except PeerGone:
            return False
        summands = [row for row in rows if row]
        for part in exchange.parts(len(rows)) if exchange.open and len(summands) > 1 else ():
            views = [np.frombuffer(row, part.dtype, part.count, part.offset) for row in summands]
            np.frombuffer(arena, part.dtype, part.count, part.offset)[:] = np.sum(views, axis=0)
        return True

    def applied(self, words: Words, share: StepShare, metrics: Metrics) -> None:  # noqa: ARG002  # the protocol's
        """Note that the step is over."""
        self._in_step = False

    def settle(self) -> None:
        """Save the state if the scenario wants it, except in an agreement within an epoch: code would be lost."""
        position = self.training.position
        if not self._saves or (self._is_agreeing and position.cursor and not (position.at_end or position.stopped)):
            return
        if self._link.wants(position.step, self._is_complete):
            self.next_steps.saved(0)
            self._link.save(_packed(self.training))

    def gather(self, row: list[int]) -> list[list[int]]:
        """Return the rows of all ranks; outside a step this is also a safe point."""
        if not self._in_step:  # in a step, whose gradients are compared, a real group writes later
            self.settle()
        return self._rows("gather", row)

    def hand_over(self, giver: int, takers: Sequence[int], kind: str = "hand over") -> None:
        """Give the state of rank ``giver`` to ``takers``."""
        if self.member is None:
            raise PeerGone
        rank = self.member.rank
        rows = self._together(kind, _packed(self.training) if rank == giver else b"")
        if rank in takers:
            self.training.restore(unpack(bytearray(rows[giver])))

    def finish(self, metrics: Metrics) -> None:  # noqa: ARG002  # the protocol's signature
        """Wait until all ranks have arrived here."""
        while True:
            self.enter()
            with suppress(PeerGone):
                self._together("finish", b"")
                return

    @property
    def _is_complete(self) -> bool:
        """Whether this rank has run the script's code since the last step, or runs it now, at an epoch's beginning."""
        return not self.training.catch_up.behind or self.training.position.cursor == 0

    @property
    def _is_agreeing(self) -> bool:
        return self.training.catch_up.meeting is not None

    def _begin(self, start: GroupStart) -> None:
        hellos: list[tuple[list[int], Identity]] = [msgspec.msgpack.decode(one) for one in start.hellos]
        expect_same([identity for _, identity in hellos])
        if start.begin:
            self.training.restore(unpack(bytearray(start.begin)))
            self.next_steps.resumed(start.next_step)
        table = [Holding(*row) for row, _ in hellos]
        spreading = who_spreads(table)
        self.newcomers = Newcomers.of(table, spreading, 1)
        self.member = Membership(start.number, start.index, len(table))
        if spreading.takers:
            self.hand_over(spreading.root, spreading.takers, "state")
        self.next_steps.group_begins(resumes=spreading.fresh and self.training.position.step > 0)
        self.training.shares.group_begins(start.index, self.training.position.step, table)
        self._held, self._saves = start.number, start.saves
        self.revision += 1
        self._exchanges.idle()
        self._selected = 0
        self._resized(len(table))

    def _rows(self, kind: str, row: list[int]) -> list[list[int]]:
        return [msgspec.msgpack.decode(one) for one in self._together(kind, msgspec.msgpack.encode(row))]

    def _together(self, kind: str, block: bytes) -> list[bytes]:
        if self.member is None:
            raise PeerGone
        try:
            return self._link.together(kind, block, self._is_agreeing, self._is_complete)
        except PeerGone:
            self.member = None
            raise


def _packed(training: Training) -> bytes:
    """Return the state of ``training`` as another rank receives it."""
    return bytes(Packed(training.encoded()).to_bytes())
