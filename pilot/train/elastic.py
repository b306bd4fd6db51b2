"""A worker in its groups: joins generations, brings them to one state, switches, parks, pauses, and finishes.

Everything happens at *safe points*, on the script's own thread: where a session enters a group, when the script comes
for the batch after a step, and in meetings (:mod:`pilot.train.collectives`). The sockets are read there and where sums
are waited for (a generation that forms can wait for the end of a step). Only checkpoints are written by another thread,
from a copy.

How a generation starts, on each of its ranks:

1. The rank process, in MPI with all others, is handed the gradient arena.
2. All ranks come to one state (:mod:`pilot.train.state_sharing`).
3. Rank 0 leads: it says ``GroupFormed``, and reports from then on.

Whatever goes wrong on the way (a rank process ends, the agent kills the generation) is a ``Gone``, and the worker
waits for the next generation with the state that it held before.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import psutil

from pilot.comm.channel import Gone
from pilot.comm.messages import AnyNote, Attach, Gather, Gathered, Moving, Quit, Select
from pilot.io import wire
from pilot.train import imported
from pilot.train.exchanges import Exchanges
from pilot.train.in_force import InForce
from pilot.train.membership import Membership, MembershipState, Seat, agreed
from pilot.train.node_ties import NodeTies
from pilot.train.periodic import Periodic
from pilot.train.reporter import Metrics, Reporter
from pilot.train.sampler import StepShare
from pilot.train.saver import Saver
from pilot.train.script_end import Released, released
from pilot.train.sockets import Happening, RankCame, RankGone, RankSaid, WorkerSockets
from pilot.train.stall_timer import StallTimer
from pilot.train.state_sharing import StateSharing
from pilot.train.state_transfer import NOTHING, Spreading
from pilot.train.step_words import Words
from pilot.train.training import Training


class Elastic:
    """See the module, and :class:`~pilot.train.group.RankGroup` for what the session uses.

    Parameters
    ----------
    seat : of this process on its node
    link : to the agent and to the rank processes
    training, exchanges : of the session
    saver : of the trainer's checkpoints
    interval_s : between two periodic checkpoints, until told otherwise
    stall_timer : with other ranks
    resized : called with the number of ranks when a generation starts, when its state is there
    ties : to the other processes of the node
    """

    def __init__(
        self,
        trainer: str,
        seat: Seat,
        link: WorkerSockets,
        training: Training,
        exchanges: Exchanges,
        saver: Saver,
        interval_s: float,
        stall_timer: StallTimer,
        resized: Callable[[int], None],
        ties: NodeTies,
    ) -> None:
        self._trainer = trainer
        self._seat = seat
        self._link = link
        self._training = training
        self._exchanges = exchanges
        self._saver = saver
        self._periodic = Periodic(saver, training, interval_s)
        self._stall_timer = stall_timer
        self._resized = resized
        self._membership = MembershipState()
        self._reporter = Reporter(trainer, training, link.tell)
        self._shards = training.sharding.size if training.sharding is not None else 1
        self._ties = ties
        ties.meanwhile(self._attend)
        self._in_force = InForce(self._membership, ties, self._lose)
        self._sharing = StateSharing(trainer, training, saver, link, self._gather, self._answer, self._lose, ties)
        self._heard: list[RankSaid] = []
        self._hanging_up: set[int] = set()
        self._held = NOTHING
        self._announced = False
        self._agreed: tuple[Membership, Words] | None = None
        self._let_go: Membership | None = None
        self.revision = 0

    # --- what the session uses ---------------------------------------------------------------------------------------

    def enter(self) -> Membership:
        """Be in a group; waits for the next one where none is in force. After the end: the last one."""
        if self._let_go is not None:
            return self._let_go
        self._announce()
        while self._group is None:
            self._start(self._in_force.next(lambda: self._attend(None), lambda: not self._hanging_up))
        return self._group

    @property
    def _group(self) -> Membership | None:
        return self._in_force.group

    def attach(self) -> None:
        """See :class:`~pilot.train.group.RankGroup`."""
        group = self._group
        if group is not None:
            try:
                self._in_force.together(group, lambda: self._attach(group.generation))
            except Gone:
                return

    def select(self, number: int) -> list[int]:
        """See :class:`~pilot.train.group.RankGroup`."""
        group = self._group
        if group is None:
            raise Gone
        if group.size == 1:
            return [number]
        return [row[0] for row in self._ask(group, Select(number), 1)]

    def ring(self) -> None:
        """The next part of the step is full."""
        group = self._group
        if group is None or group.size == 1:
            return
        try:
            self._link.channel(group.generation).ring()
        except Gone:
            self._lose(group.generation)

    def words(self, loss: float) -> Words:
        """What this rank has to say with this step, as of now."""
        self._attend(0.0)
        group, periodic = self._group, self._periodic
        save, saved = periodic.may_save(group), periodic.has_saved(group)
        return Words.of(self._membership.ready_for, self._membership.pause_asked, loss, save=save, saved=saved)

    def summed(self) -> bool:
        """Wait for the step's sums. False: this generation has gone, the step is void."""
        group = self._group
        if group is None or group.size == 1:
            return group is not None
        try:
            self._in_force.together(group, lambda: self._answer(group.generation, summing=True))
        except Gone:
            return False
        return True

    def sums_came(self) -> None:
        """Nobody looks."""

    def applied(self, words: Words, share: StepShare, metrics: Metrics) -> None:
        """Report an applied step."""
        group, position = self._group, self._training.position
        assert group is not None
        self._reporter.stepped(group, position.epoch, share, metrics)
        self._agreed = group, words

    def settle(self) -> None:
        """The safe point after an applied step, when the script comes for the next one: pause or switch if that was
        agreed, save if it is due.
        """
        agreement, self._agreed = self._agreed, None
        if agreement is None or agreement[0] is not self._group:
            return
        group, words = agreement
        if words.pause:
            self._pause(group)
        elif generation := agreed(words.ready, words.squares, group.size):
            self._switch(group, generation)
        else:
            self._periodic.stepped(group, words)

    def gather(self, row: list[int]) -> list[list[int]]:
        """The rows of all ranks, between two steps; pause or switch instead if that is agreed in the same gather.

        A switch waits for the next step, or for the epoch's end: there a newcomer does what the others did since.
        """
        self._attend(0.0)
        group = self._group
        if group is None:
            raise Gone
        ready_for = self._membership.ready_for if self._training.position.at_end else 0
        rows = self._gather(group, [ready_for, int(self._membership.pause_asked), *row])
        ready = {row[0] for row in rows}
        if any(row[1] for row in rows):
            self._pause(group)
        elif len(ready) == 1 and ready != {0}:
            self._switch(group, ready.pop())
        else:
            return [row[2:] for row in rows]
        raise Gone

    def hand_over(self, giver: int, takers: Sequence[int]) -> None:
        """As at the start of a generation."""
        group = self._group
        if group is None:
            raise Gone
        self._sharing.deal(group, Spreading(giver, tuple(takers), fresh=False))

    def distrust(self, step: int) -> str:
        """See :class:`~pilot.train.group.RankGroup`. All ranks do it: any of them may be the last to live."""
        self._periodic.abandon()
        path = self._saver.distrust(step)
        return f"the newest checkpoint from then is {path}" if path is not None else "there is no checkpoint from then"

    def rested(self, seconds: float) -> None:
        """The duration of an evaluation, which does not count as a stall."""
        self._reporter.rested(seconds)

    def finish(self, metrics: Metrics) -> None:
        """The script's loop is over: the leader says so; wait to be stopped, and regroup where a leader died before.

        It says so again while nobody stops it: its word may have been lost with a coordinator that was killed.
        """
        told, again_s = NOTHING, 0.0
        self._periodic.abandon()
        try:
            with released():
                while True:
                    group = self.enter()
                    if group.rank < self._shards and told != group.generation:
                        told, again_s = group.generation, 0.0
                        self._write(asked=False)
                    if group.rank == 0 and time.monotonic() >= again_s:
                        self._reporter.finished(group, metrics)
                        again_s = time.monotonic() + self._stall_timer.silent_s
                    self._attend(self._stall_timer.silent_s)
                    self._in_force.look_again()
                    if self._membership.pause_asked:  # there is no step more to agree on it: all are where they end
                        self._pause(group)
        except Released:
            self._let_go = self._group
            if self._let_go is not None:
                self._quit(self._let_go)

    # --- what happens ------------------------------------------------------------------------------------------------

    def _announce(self) -> None:
        if not self._announced:
            self._announced = True
            imported.tell()
            self._link.tell(wire.WorkerReady(self._trainer, time.time() - psutil.Process().create_time()))

    def _attend(self, timeout_s: float | None) -> None:
        """Take in what happens; waits up to ``timeout_s`` for it (None: without end)."""
        for happening in self._link.wait(timeout_s):
            self._take_in(happening)

    def _take_in(self, happening: Happening) -> None:
        match happening:
            case wire.JoinGroup(_, generation, node, nodes, _, granted):
                self._membership.told_to_join(self._seat.member(generation, node, nodes, granted))
            case wire.PartFromGroup(_, generation):
                self._membership.told_to_part(generation)
            case wire.PauseGroup(_, generation):
                self._told_to_pause(generation)
            case wire.LookAtGroup():
                self._tell_what_for()
            case wire.DissolveGroup(_, generation):
                self._lose(generation)
                self._membership.killed(generation)
            case wire.WriteCheckpoint():
                if self._seat.rank < self._shards:  # where nothing is sharded one process has all
                    self._write(asked=True)
            case wire.PaceCheckpoints(_, interval_s):
                self._periodic.interval_s = interval_s
            case wire.StopWorker():
                raise Released
            case RankCame(generation):
                if not self._membership.rank_came(generation):
                    self._link.drop(generation)
            case RankSaid():
                self._heard.append(happening)
            case RankGone(generation):
                self._hanging_up.discard(generation)
                self._membership.rank_lost(generation)

    def _lose(self, generation: int) -> None:
        """A generation has gone. Its rank process must end before anybody else uses the arena."""
        if self._link.hang_up(generation):
            self._hanging_up.add(generation)
        self._membership.rank_lost(generation)

    def _told_to_pause(self, generation: int) -> None:
        self._membership.told_to_pause(generation)
        if self._membership.current is None:
            self._link.tell(wire.RankPaused(self._trainer, generation, self._training.position.step))

    def _answer(self, generation: int, *, summing: bool = False) -> AnyNote | int | None:
        """What the rank process of ``generation``, which must be in force, says next: a note, a descriptor, or its
        doorbell.
        """
        self._stall_timer.begin(summing)
        while self._membership.current is not None and self._membership.current.generation == generation:
            while self._heard:
                said = self._heard.pop(0)
                if said.generation == generation and not isinstance(said.note, Moving):
                    self._stall_timer.end()
                    return said.note if said.fd is None else said.fd
                self._stall_timer.begin(summing)  # progress: the wait starts again
            self._attend(self._stall_timer.left_s())
            if self._stall_timer.is_over():
                self._tell_what_for()
        self._stall_timer.end()
        raise Gone

    def _tell_what_for(self) -> None:
        """What this rank waits for, and for how long by now."""
        group, step = self._membership.current, self._training.position.step
        waited_s, summing = self._stall_timer.waited_s(), self._stall_timer.summing
        self._link.tell(wire.RankStalled(self._trainer, group.generation if group else 0, step, waited_s, summing))

    # --- the start of a generation -----------------------------------------------------------------------------------

    def _start(self, generation: int) -> None:
        """Start ``generation``. Where that fails none is in force afterwards."""
        self.revision += 1
        try:
            group = self._ties.together(lambda: self._begin(generation))
            resumed = self._sharing.share(group, self._held)
        except Gone:
            self._lose(generation)
            self._in_force.ended()
            return
        self._held = generation
        self._in_force.started(group)
        self._resized(group.size)
        self._reporter.started(group, resumed)

    def _begin(self, generation: int) -> Membership:
        group = self._in_force.begin(generation)
        self._exchanges.idle()
        self._attach(generation)
        return group

    def _attach(self, generation: int) -> None:
        for number, exchange in enumerate(self._exchanges.each):
            self._link.channel(generation).send(Attach(list(exchange.layout.parts), number), exchange.arena.fd)

    def _gather(self, group: Membership, row: list[int]) -> list[list[int]]:
        """The rows of all ranks of ``group``, which must be in force."""
        return self._ask(group, Gather(row), len(row))

    def _ask(self, group: Membership, note: Gather | Select, length: int) -> list[list[int]]:
        return self._in_force.together(group, lambda: self._asked(group, note, length))

    def _asked(self, group: Membership, note: Gather | Select, length: int) -> list[list[int]]:
        self._link.channel(group.generation).send(note)
        gathered = self._answer(group.generation, summing=isinstance(note, Select))
        if isinstance(gathered, Gathered) and [len(row) for row in gathered.rows] == [length] * group.size:
            return gathered.rows
        self._lose(group.generation)  # a rank process that talks nonsense is as good as none
        raise Gone

    # --- the end of a generation -------------------------------------------------------------------------------------

    def _switch(self, group: Membership, generation: int) -> None:
        """All ranks stop here; continue in ``generation``, or hold the state until told otherwise if it is not ours."""
        self._quit(group)
        if self._membership.joining is not None and self._membership.joining.generation == generation:
            self._start(generation)
        else:
            self._leave()

    def _pause(self, group: Membership) -> None:
        """All ranks stop here; hold the state until told what becomes of it."""
        self._quit(group)
        self._leave()
        self._link.tell(wire.RankPaused(self._trainer, group.generation, self._training.position.step))

    def _leave(self) -> None:
        self._membership.leave()
        self._in_force.ended()
        self.revision += 1

    def _quit(self, group: Membership) -> None:
        """The generation ends in good order: its rank processes are done with the arena."""
        try:
            self._link.channel(group.generation).send(Quit())
        except Gone:
            return

    # --- checkpoints -------------------------------------------------------------------------------------------------

    def _write(self, *, asked: bool) -> None:
        self._periodic.begun()
        generation, step, state = max(self._held, 0), self._training.position.step, self._training.encoded()
        part = (self._seat.rank, self._training.shared()) if self._shards > 1 else None
        self._saver.write(generation, step, state, asked=asked, part=part)
