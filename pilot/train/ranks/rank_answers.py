"""Waits of a worker for the answers of its rank processes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from pilot.comm.channel import PeerGone
from pilot.comm.messages import AnyNote, Gather, Gathered, Moving, OutOfStep, Select
from pilot.comm.naps import FIRST_NAP_S, longer
from pilot.core.errors import UserError
from pilot.train.node.membership import Membership, MembershipState
from pilot.train.node.sockets import RankMessage, WorkerSockets
from pilot.train.ranks.meters import StallTimer


@dataclass
class RankAnswers:
    """Waits for ``messages`` from rank processes."""

    link: WorkerSockets
    membership: MembershipState  #: knows the generation in force
    stall_timer: StallTimer
    attend: Callable[[float], None]  #: handles events, and waits for one up to this number of seconds
    lose: Callable[[int], None]  #: called with a generation whose rank process sends nonsense
    stalled: Callable[[], None]  #: called when a wait is to be reported
    messages: list[RankMessage] = field(default_factory=list)

    def next(self, generation: int, *, summing: bool = False) -> AnyNote | int | None:
        """Return the next message from the rank process of ``generation``: a note, a descriptor, or None for its
        doorbell. :class:`~pilot.comm.channel.PeerGone` if the generation is not in force any more.
        """
        self.stall_timer.begin(summing)
        while self.membership.current is not None and self.membership.current.generation == generation:
            while self.messages:
                message = self.messages.pop(0)
                if message.generation == generation and not isinstance(message.note, Moving):
                    self.stall_timer.end()
                    if isinstance(message.note, OutOfStep):
                        raise _out_of_step(message.note.gathering, self.membership.current.rank)
                    return message.note if message.fd is None else message.fd
                self.stall_timer.begin(summing)  # progress: the wait starts again
            self.attend(self.stall_timer.left_s())
            if self.stall_timer.is_over():
                self.stalled()
        self.stall_timer.end()
        raise PeerGone

    def until(self, done: Callable[[], bool]) -> None:
        """Wait until ``done`` returns True; :class:`~pilot.comm.channel.PeerGone` if no generation is in force."""
        nap_s = FIRST_NAP_S
        self.stall_timer.begin(summing=False)
        try:
            while self.membership.current is not None and not done():
                self.attend(min(nap_s, self.stall_timer.left_s()))
                nap_s = longer(nap_s)
                if self.stall_timer.is_over():
                    self.stalled()
        finally:
            self.stall_timer.end()
        if self.membership.current is None:
            raise PeerGone

    def rows(self, group: Membership, note: Gather | Select, length: int) -> list[list[int]]:
        """Send ``note``, and return a row of ``length`` numbers for each rank of ``group``."""
        self.link.channel(group.generation).send(note)
        rows: list[list[int]] = []
        while len(rows) < group.size:
            gathered = self.next(group.generation, summing=isinstance(note, Select))
            if not isinstance(gathered, Gathered) or not gathered.rows:
                break
            rows += gathered.rows
        if [len(row) for row in rows] == [length] * group.size:
            return rows
        self.lose(group.generation)  # a rank process that sends nonsense is useless
        raise PeerGone


def _out_of_step(gathering: int, summing: int) -> UserError:
    """Return the error for rank ``summing``, which waits for sums while rank ``gathering`` waits for rows."""
    return UserError(
        f"rank {gathering} is in session.evaluate, or at the end of its epoch or loop, while rank {summing} is in"
        " session.step, so each waits for the other: all ranks must do both in the same order; call session.evaluate"
        " and end the loop on all of them, not under a condition that differs between ranks"
    )
