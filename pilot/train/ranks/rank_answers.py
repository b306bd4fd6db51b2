"""Waits of a worker for the answers of its rank processes."""

from __future__ import annotations

from collections.abc import Callable

from pilot.comm.channel import PeerGone
from pilot.comm.messages import AnyNote, Gather, Gathered, Moving, OutOfStep, Select
from pilot.core.errors import UserError
from pilot.train.node.membership import Membership, MembershipState
from pilot.train.node.sockets import RankMessage, WorkerSockets
from pilot.train.ranks.meters import StallTimer


class RankAnswers:
    """Waits for ``messages`` from rank processes.

    Parameters
    ----------
    membership : knows the generation in force
    attend : handles events, and waits for one up to this number of seconds
    lose : called with a generation whose rank process sends nonsense
    stalled : called when a wait is to be reported
    """

    def __init__(
        self,
        link: WorkerSockets,
        membership: MembershipState,
        stall_timer: StallTimer,
        attend: Callable[[float], None],
        lose: Callable[[int], None],
        stalled: Callable[[], None],
    ) -> None:
        self._link = link
        self._membership = membership
        self._stall_timer = stall_timer
        self._attend = attend
        self._lose = lose
        self._stalled = stalled
        self.messages: list[RankMessage] = []

    def next(self, generation: int, *, summing: bool = False) -> AnyNote | int | None:
        """Return the next message from the rank process of ``generation``: a note, a descriptor, or None for its
        doorbell. :class:`~pilot.comm.channel.PeerGone` if the generation is not in force any more.
        """
        self._stall_timer.begin(summing)
        while self._membership.current is not None and self._membership.current.generation == generation:
            while self.messages:
                message = self.messages.pop(0)
                if message.generation == generation and not isinstance(message.note, Moving):
                    self._stall_timer.end()
                    if isinstance(message.note, OutOfStep):
                        raise _out_of_step(message.note.gathering, self._membership.current.rank)
                    return message.note if message.fd is None else message.fd
                self._stall_timer.begin(summing)  # progress: the wait starts again
            self._attend(self._stall_timer.left_s())
            if self._stall_timer.is_over():
                self._stalled()
        self._stall_timer.end()
        raise PeerGone

    def rows(self, group: Membership, note: Gather | Select, length: int) -> list[list[int]]:
        """Send ``note``, and return a row of ``length`` numbers for each rank of ``group``."""
        self._link.channel(group.generation).send(note)
        rows: list[list[int]] = []
        while len(rows) < group.size:
            gathered = self.next(group.generation, summing=isinstance(note, Select))
            if not isinstance(gathered, Gathered) or not gathered.rows:
                break
            rows += gathered.rows
        if [len(row) for row in rows] == [length] * group.size:
            return rows
        self._lose(group.generation)  # a rank process that sends nonsense is useless
        raise PeerGone


def _out_of_step(gathering: int, summing: int) -> UserError:
    """Return the error for rank ``summing``, which waits for sums while rank ``gathering`` waits for rows."""
    return UserError(
        f"rank {gathering} is in session.evaluate, or at the end of its epoch or loop, while rank {summing} is in"
        " session.step, so each waits for the other: all ranks must do both in the same order; call session.evaluate"
        " and end the loop on all of them, not under a condition that differs between ranks"
    )
