"""A worker in its elastic groups: it joins generations, synchronises state, switches, parks, pauses, and finishes.

Everything is done at *safe points*, on the script's own thread: when a session enters a group, when the script asks for
the batch after a step, and in agreements (:mod:`pilot.train.ranks.collectives`). The sockets are read there and while
waiting for sums (a forming generation can wait for the end of a step). Only checkpoints are written by another thread,
from a copy.

How a generation starts, on each of its ranks:

1. The rank process, which is in MPI with all others, gets the gradient arena.
2. All ranks get the same state (:mod:`pilot.train.ranks.state_sharing`).
3. Rank 0 is the leader: it sends ``GroupFormed``, and reports from then on.

Any failure (a rank process ends, the agent kills the generation) raises ``PeerGone``, and the worker waits for the next
generation with its previous state.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

from pilot.comm.channel import PeerGone
from pilot.comm.messages import Attach, Closing, Gather, Open, Quit, Select
from pilot.core.commands import (
    DissolveGroup,
    ExamineGroup,
    PauseGroup,
    SetCheckpointInterval,
    StopWorker,
    WriteCheckpoint,
)
from pilot.core.errors import CheckpointError
from pilot.protocol import wire
from pilot.train.between.between import Between, Formation
from pilot.train.data.sampler import StepShare
from pilot.train.gradients.exchanges import Exchanges
from pilot.train.gradients.step_words import Words
from pilot.train.node.membership import Membership, MembershipState, Seat, agreed
from pilot.train.node.node_ties import InForce, NodeTies
from pilot.train.node.sockets import RankConnected, RankGone, RankMessage, WorkerEvent, WorkerSockets
from pilot.train.ranks.group import RankGroup
from pilot.train.ranks.meters import PaceMeter, StallTimer
from pilot.train.ranks.periodic import Periodic
from pilot.train.ranks.rank_answers import RankAnswers
from pilot.train.ranks.reporter import Metrics, Reporter
from pilot.train.ranks.saver import Saver
from pilot.train.ranks.script_end import Released, release_when, released
from pilot.train.ranks.state_sharing import StateSharing
from pilot.train.state.block import gather_values
from pilot.train.state.progress import LineageRow
from pilot.train.state.state_transfer import NOTHING, Spreading
from pilot.train.state.training import Training


class Elastic(RankGroup):
    """The group of a worker under an agent.

    Parameters
    ----------
    trainer : the trainer's name
    seat : this process's place on its node
    link : the sockets to the agent and to the rank processes
    training, exchanges : the session's state, and what it sums
    saver : writes and loads the trainer's checkpoints
    interval_s : between two periodic checkpoints, until the agent sets another interval
    stall_timer : times waits for other ranks
    resized : called with the number of ranks when a generation has started, with its state
    ties : to the other processes of the node
    between : the process group between nodes
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
        between: Between,
    ) -> None:
        super().__init__(training, resized, saver.keep_next)
        self._trainer = trainer
        self._seat = seat
        self._link = link
        self._training = training
        self._exchanges = exchanges
        self._saver = saver
        self._periodic = Periodic(saver, training, self.next_steps, interval_s)
        self._stall_timer = stall_timer
        self._membership = MembershipState()
        self._reporter = Reporter(trainer, training, link.send)
        self._pace = PaceMeter(trainer, training.shares)
        self._ties = ties
        ties.attend = self._attend
        self._in_force = InForce(self._membership, ties, self._lose)
        self._answers = RankAnswers(link, self._membership, stall_timer, self._attend, self._lose, self._report_wait)
        answer = self._answers.next
        self._between = between
        between.until, between.report = self._answers.until, self._report_broken
        self._sharing = StateSharing(
            trainer, training, saver, self.next_steps, link, self._gather, answer, self._lose, ties, seat.size, between
        )
        self._ending_ranks: set[int] = set()
        self.confirmed = NOTHING
        self._agreed: tuple[Membership, Words] | None = None
        self._released: Membership | None = None
        self._in_step = self._write_later = False
        self._closing = NOTHING

    def enter(self) -> Membership:
        """Return the group in force, after waiting for one; after the end return the last one."""
        if self._released is not None:
            return self._released
        self._leave_step()
        self._reporter.ready()
        while self._group is None:
            self._start(self._in_force.next(lambda: self._attend(None), lambda: not self._ending_ranks))
        return self._group

    @property
    def is_over(self) -> bool:
        return self._released is not None

    @property
    def _group(self) -> Membership | None:
        return self._in_force.group

    def _expect_group(self) -> Membership:
        if self._group is None:
            raise PeerGone
        return self._group

    def attach(self) -> None:
        with suppress(PeerGone):
            group = self._expect_group()
            self._in_force.together(group, lambda: self._attach(group.generation, group.size))

    def select(self, number: int) -> list[int]:
        self._in_step = True
        group = self._expect_group()
        if group.size == 1:
            return [number]
        return [row[0] for row in self._ask(group, Select(number), 1)]

    def ring(self) -> None:
        """Wake the rank process: the next bucket is full."""
        group = self._group
        if group is None or group.size == 1:
            return
        try:
            self._link.channel(group.generation).ring()
        except PeerGone:
            self._lose(group.generation)

    def words(self, loss: float) -> Words:
        """Return the words that this rank sends with its step."""
        self._in_step = True
        self._attend(0.0)
        group, periodic = self._group, self._periodic
        save, saved = periodic.may_save(group), periodic.has_saved(group)
        words = Words.of(self._membership.ready_for, self._membership.pause_asked, loss, save=save, saved=saved)
        return self._with_time(words, group) if group is not None else words

    def summed(self) -> bool:
        """Wait for the step's sums. Return False if the generation is gone, so that the step is void."""
        group = self._group
        if group is None or group.size == 1:
            return group is not None
        try:
            self._in_force.together(group, lambda: self._sums(group.generation))
        except PeerGone:
            return False
        return True

    def _sums(self, generation: int) -> None:
        self._answers.next(generation, summing=True)
        self._between.finish()

    def applied(self, words: Words, share: StepShare, metrics: Metrics) -> None:
        """Report an applied step. In a round the group may be gone by then, and others have no part in the step."""
        group, in_rounds = self._group, self._training.outer is not None
        if group is None:
            assert in_rounds
            return
        self._reporter.stepped(group, self._training.position.epoch, share, metrics)
        if group.size > 1:
            pace = self._pace.applied(time.monotonic(), self._stall_timer.ended_s, share.samples)
            self.own_s = self._pace.last_s
            if pace is not None and self._seat.rank == 0:  # within a node processes wait for each other's computations
                self._link.send(pace)
        if in_rounds:
            self._pace.begins(time.monotonic(), self._stall_timer.ended_s)
        else:
            self._agreed = group, words

    def settle(self) -> None:
        """Pause or switch if the step's words agreed on that, and save if it is due: the safe point after a step."""
        self._leave_step()
        self._reporter.new_code()
        agreement, self._agreed = self._agreed, None
        if agreement is None or agreement[0] is not self._group:
            return
        group, words = agreement
        generation = agreed(words.ready, words.squares, group.size)
        goes_on = not (words.pause or generation)
        if goes_on or self._training.outer is not None:  # a next round's end may be long in coming
            self._periodic.stepped(group, words)
        if words.pause:
            self._pause(group)
        elif generation:
            self._switch(group, generation)
        elif not self._training.position.at_end:
            self._pace.begins(time.monotonic(), self._stall_timer.ended_s)

    def gather(self, row: list[int]) -> list[list[int]]:
        """Return the rows of all ranks, between two steps; pause instead if a rank was asked to."""
        self._attend(0.0)
        group = self._expect_group()
        rows = self._gather(group, [int(self._membership.pause_asked), *row])
        if not any(row[0] for row in rows):
            return [row[1:] for row in rows]
        self._pause(group)
        raise PeerGone

    def rows(self, row: list[int]) -> list[list[int]]:
        return self._gather(self._expect_group(), row)

    def opened(self, number: int, *, ends: bool) -> None:
        self._in_step = True
        with suppress(PeerGone):
            group = self._expect_group()
            self._link.channel(group.generation).send(Open(number, ends))

    @property
    def is_lost(self) -> bool:
        return self._group is None

    def is_asked(self, number: int) -> bool:
        for _ in range(3):  # a rank process connects, and then says of which generation it is
            self._attend(0.0)
        if self._group is not None:
            joins = self._membership.joining is not None and self._membership.ready_for > 0
            return joins or self._membership.pause_asked or self._write_later or self._closing >= number
        if self._write_later:
            self._leave_step()
        return self._membership.startable() is not None

    def held(self, words: Words, rows: Sequence[LineageRow], seconds: float, metrics: Metrics) -> None:
        group = self._group
        assert group is not None
        self._reporter.held(group, rows, seconds, metrics)
        self._agreed = group, words

    def hand_over(self, giver: int, takers: Sequence[int]) -> None:
        """Hand over the state as at the start of a generation."""
        spreading = Spreading(giver, tuple(takers), fresh=False)
        self._sharing.spread(self._expect_group(), spreading, self._training.shards)

    def distrust(self, step: int) -> str:
        # All ranks do this, because any of them may be the last survivor.
        self._periodic.abandon()
        try:
            path = self._saver.distrust(step)
        except (CheckpointError, OSError) as error:
            return f"checkpoints after step {step} must not be used, but could not be renamed: {error}"
        return f"the newest one is {path}" if path is not None else "there is no checkpoint"

    def remark(self, text: str) -> None:
        if self._group is not None and self._group.rank == 0:
            self._reporter.remark(text)

    def rested(self, seconds: float) -> None:
        self._reporter.meter.rested(seconds)
        self._pace.idle()

    def finish(self, metrics: Metrics) -> None:
        """Report the end of the loop, as the leader, and wait to be stopped; regroup if the leader died before that.

        The leader repeats its report until it is stopped, because a killed coordinator may have lost it.
        """
        written, again_s = NOTHING, 0.0
        self._periodic.abandon()
        try:
            with released():
                while True:
                    group = self.enter()
                    if group.rank < self._training.shards and written != group.generation:
                        written, again_s = group.generation, 0.0
                        self._write(asked=False)
                    if group.rank == 0 and time.monotonic() >= again_s:
                        self._reporter.finished(group, metrics)
                        again_s = time.monotonic() + self._stall_timer.silent_s
                    self._attend(self._stall_timer.silent_s)
                    self._in_force.check_again()
                    if self._membership.pause_asked:  # no further step is needed to agree on it: all are at the end
                        self._pause(group)
        except Released:
            self._released = self._group
            if self._released is not None:
                self._quit(self._released)
            # Other messages than an immediate stop do not matter any more.
            release_when(lambda: any(isinstance(e, StopWorker) and not e.within_s for e in self._link.wait(0.0)))

    # --- events ------------------------------------------------------------------------------------------------------

    def _attend(self, timeout_s: float | None) -> None:
        """Handle events; wait up to ``timeout_s`` for one (None: no limit)."""
        for event in self._link.wait(timeout_s):
            self._handle(event)

    def _handle(self, event: WorkerEvent) -> None:
        match event:
            case wire.JoinGroup(_, generation, node, nodes, saved_step, given_up):
                self._membership.join_requested(self._seat.member(generation, node, nodes, saved_step, given_up))
            case wire.LeaveGroup(_, generation):
                self._membership.leave_requested(generation)
            case PauseGroup(_, generation):
                self._membership.pause_requested(generation)
                if self._membership.current is None:
                    self._reporter.paused(generation)
            case ExamineGroup():
                self._report_wait()
            case DissolveGroup(_, generation):
                self._lose(generation)
                self._membership.killed(generation)
            case WriteCheckpoint():
                self._write_requested()
            case SetCheckpointInterval():
                self._periodic.interval_s = event.interval_s
            case StopWorker():
                raise Released
            case RankConnected(generation):
                if not self._membership.rank_connected(generation):
                    self._link.drop(generation)
            case RankMessage(_, Closing(number)):
                self._closing = number
            case RankMessage():
                self._answers.messages.append(event)
            case RankGone(generation):
                self._ending_ranks.discard(generation)
                self._membership.rank_lost(generation)
                self._between.abandon(generation)

    def _lose(self, generation: int) -> None:
        """Note that a generation is gone. Its rank process must end before the arena is used again."""
        if self._link.hang_up(generation):
            self._ending_ranks.add(generation)
        self._membership.rank_lost(generation)
        self._between.abandon(generation)

    def _report_broken(self, generation: int, reason: str) -> None:
        self._link.send(wire.GroupBroken(self._trainer, generation, reason))

    def _report_wait(self) -> None:
        """Report how long this rank has been waiting, and whether for sums."""
        self._reporter.stalled(self._membership.current, self._stall_timer)

    # --- the start of a generation -----------------------------------------------------------------------------------

    def _start(self, generation: int) -> None:
        """Start ``generation``; if that fails, none is in force afterwards."""
        self.revision += 1
        self._closing = NOTHING
        try:
            group = self._ties.together(lambda: self._begin(generation))
            self._in_force.started = group
            self.regroup(group)
            resumed, self.newcomers = self._sharing.share(group, self.confirmed)
            self.next_steps.group_begins(resumes=bool(resumed))
        except PeerGone:
            self._lose(generation)
            self._in_force.started = None
            return
        self.confirmed = generation
        self._resized(group.size)
        self._reporter.started(group, resumed)
        self._pace.idle()

    def _begin(self, generation: int) -> Membership:
        group = self._in_force.begin(generation)
        if self._between.memory_is_unsafe:
            self._exchanges.replace()
            self._between.memory_is_unsafe = False
        self._exchanges.idle()
        self._between.form(group, partial(self._formations, group))
        self._attach(generation, group.size)
        return group

    def _formations(self, group: Membership, own: Formation) -> list[Formation]:
        return gather_values(own, Formation, lambda row: self._answers.rows(group, Gather(row), len(row)))

    def _attach(self, generation: int, ranks: int) -> None:
        for number, exchange in enumerate(self._exchanges.each):
            self._link.channel(generation).send(Attach(exchange.parts(ranks), number), exchange.arena.fd)

    def _gather(self, group: Membership, row: list[int]) -> list[list[int]]:
        """Return the rows of all ranks of ``group``, which must be in force."""
        return self._ask(group, Gather(row), len(row))

    def _ask(self, group: Membership, note: Gather | Select, length: int) -> list[list[int]]:
        return self._in_force.together(group, lambda: self._answers.rows(group, note, length))

    # --- the end of a generation -------------------------------------------------------------------------------------

    def _switch(self, group: Membership, generation: int) -> None:
        """Continue in ``generation``; a rank that is not in it parks, with its state."""
        self._quit(group)
        if self._membership.joining is not None and self._membership.joining.generation == generation:
            self._start(generation)
        else:
            self._leave()

    def _pause(self, group: Membership) -> None:
        """Pause, as all ranks do here, and keep the state until the agent sends what to do with it."""
        self._quit(group)
        self._leave()
        self._reporter.paused(group.generation)

    def _leave(self) -> None:
        self._membership.leave()
        self._in_force.started = None
        self.revision += 1

    def _quit(self, group: Membership) -> None:
        """End a generation normally: its rank process is done with the arena."""
        self._between.close()
        with suppress(PeerGone):
            self._link.channel(group.generation).send(Quit())

    # --- checkpoints -------------------------------------------------------------------------------------------------

    def _write_requested(self) -> None:
        """Write a checkpoint, but not in the middle of a step, whose batch has changed the state in part."""
        if self._in_step:
            self._write_later = True
        elif self._seat.rank < self._training.shards:  # without shards one process has everything
            self._write(asked=True)

    def _leave_step(self) -> None:
        """Note that the step was applied or undone, and write a checkpoint that waited for that."""
        self._in_step = False
        if self._write_later:
            self._write_later = False
            self._write_requested()

    def _write(self, *, asked: bool) -> None:
        with self.as_held():
            self._periodic.begun()
            generation, step, state = max(self.confirmed, 0), self._training.position.step, self._training.encoded()
            self.next_steps.saved(generation)
            part = (self._seat.rank, self._training.shared()) if self._training.shards > 1 else None
            self._saver.write(generation, step, state, asked=asked, part=part)
