"""The loop of a session: its loop, its position as its loader sees it
(:class:`pilot.train.data.training_loader.LoopView`), and the parts that do the work, among them its group: an elastic
trainer's, a checked run's, or that of a script that runs alone.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator, Mapping
from pathlib import Path
from typing import Any

from pilot.core.errors import UserError
from pilot.protocol.remaining_work import EPOCH_SAMPLES, EPOCHS, ITERATIONS
from pilot.protocol.run_identity import ALL_EPOCHS, ALL_ITERATIONS, GRADIENTS
from pilot.train.check.settings import CheckedRun
from pilot.train.data import rng
from pilot.train.data.rehearsal import Rehearsal
from pilot.train.data.sampler import StepShare, mix
from pilot.train.data.training_loader import Batches, LoopView, Rest
from pilot.train.gradients.exchanges import Exchanges
from pilot.train.iterations import Turns
from pilot.train.node.membership import Seat
from pilot.train.node.node_ties import NodeFabric, NodeTies
from pilot.train.node.sockets import WorkerSockets, inherited
from pilot.train.ranks import script_end
from pilot.train.ranks.collectives import Collectives
from pilot.train.ranks.elastic import Elastic
from pilot.train.ranks.group import RankGroup
from pilot.train.ranks.meters import StallTimer
from pilot.train.ranks.saver import Saver
from pilot.train.ranks.script_end import Released
from pilot.train.script import refusal
from pilot.train.state.progress import END_OF_EPOCH, STOP, Sums
from pilot.train.state.session_checks import check_count, check_scheduled
from pilot.train.state.state_check import StateCheck
from pilot.train.state.training import Training
from pilot.train.steps.guards import StepGuard
from pilot.train.steps.rollback import Rollback
from pilot.train.steps.step import Step

_TURNS_PER_CHECK = 100
"""In ``session.iterations`` the model's modules are checked in the first two of so many turns."""
_MORE = (
    "; to go over the samples without training on them (an accuracy, swa_utils.update_bn), use session.evaluate, or"
    " torch's DataLoader of the dataset"
)
_LEFT = (
    "the loop over session.loader was left in the middle of an epoch, or before the loader's end (which `for batch in"
    " loader` reaches, and a range(len(loader)) does not), and session.epochs continues; nodes that join would leave it"
    " elsewhere. End training with session.stop(), count steps with session.iterations, and instead of a zip with a"
    " list take its items by the number of the batch (loader.enumerate())"
)


class SessionLoop(LoopView):
    """See the module.

    ``metrics``: what is reported with the trainer's progress. ``measured``: what the script has reported since the last
    epoch's end. ``made``: the session's batches, once the script has made its loader. ``checked``: the run of ``pilot
    check`` that this is. ``has_entered``: whether the process has entered a group.

    Parameters
    ----------
    training : what is trained
    seed : of the order of samples and the ranks' random generators
    wire_dtype : see :class:`~pilot.train.gradients.exchange.Exchange`
    """

    def __init__(self, training: Training, seed: int, wire_dtype: str | None) -> None:
        self.seed = seed
        self.seat = Seat.of(os.environ)
        self.checked = CheckedRun.of(os.environ)
        self.metrics: dict[str, float] = {}
        self.measured: Sums = {}
        self.made: Batches | None = None
        self.has_entered = False
        self.check = StateCheck(training)
        self.guard = StepGuard(training.steppers)
        self._training = training
        trained, sharded = [*training.trained.named.values()], training.sharding is not None
        fabric = NodeFabric.of(os.environ, self.seat, trained, sharded=sharded)
        exchanges = Exchanges(training, wire_dtype, fabric.group)
        self.group = group_of(os.environ, self.seat, training, exchanges, self._resized, fabric.ties)
        self.collectives = Collectives(self.group, training)
        rollback = Rollback(training)
        self.step = Step(training, self.group, exchanges, self.guard, rollback, seed, self.metrics, fabric.ties)
        self.step.rehearsed = lambda: self._scale(self.step.member.size)
        self._ended: int | None = None
        self._passes = 0
        self._turns: Turns | None = None
        self._told = self._has_looped = self._stopping = False

    # --- the loop ----------------------------------------------------------------------------------------------------

    def epochs(self, count: int) -> Generator[int, None, None]:
        """See :meth:`pilot.train.session.Session.epochs`."""

        def begin() -> None:
            self.collectives.arrive()
            self.collectives.scatter()
            self._ended, self._passes, self.guard.passing = None, 0, False

        def end() -> None:
            if self.guard.passing and not self._is_stopping():
                raise UserError(_LEFT)
            self._end_epoch(stop=self._is_stopping())

        check_count("session.epochs", count)
        if self.checked is not None:
            count = min(count, self.checked.epochs)
        self.metrics[EPOCHS] = float(count)
        self.step.is_last = lambda share, size: (
            self._training.position.epoch + 1 == count and self.batches_made().ends_with(share, size)
        )
        yield from self._loop(lambda: self._training.position.epoch, count, begin, end)

    def iterations(self, count: int) -> Generator[int, None, None]:
        """See :meth:`pilot.train.session.Session.iterations`. If a turn's step is void, the turn is repeated (or
        another one is next, in a new group).
        """
        check_count("session.iterations", count)
        if self.checked is not None:
            count = min(count, self.checked.epochs * self.checked.steps)
        self.metrics[ITERATIONS] = float(count)
        self.step.is_stopping = self._is_stopping
        self.step.is_last = lambda _share, _size: self._training.position.step + 1 == count
        self._turns = turns = Turns(self.batches_made(), lambda: self.step.has_more)

        def begin() -> None:
            self.collectives.arrive()
            self._ended, self.guard.passing = None, False
            turns.begin()

        def end() -> None:
            turns.end()
            if self.end_void_batch():
                self.group.enter()

        yield from self._loop(lambda: self._training.position.step, count, begin, end)

    def _loop(
        self, number: Callable[[], int], count: int, begin: Callable[[], None], end: Callable[[], None]
    ) -> Iterator[int]:
        """Up to ``count``: a turn's ``number``, between its ``begin`` and its ``end``."""
        if self._has_looped:
            raise UserError(
                "a session has one loop, with whose end training has finished, and this is a second one: make one"
                " session.epochs (or session.iterations) for all of it, in whose body (if epoch == 3:) you change what"
                " is to change on the way"
            )
        self._has_looped = True
        self.check.whole()
        check_scheduled(self._training.steppers, self._training.tracked.values())
        self._training.ends_at(ALL_EPOCHS if self.by_epoch() else ALL_ITERATIONS, count)
        has_entered = self.has_entered
        self.group.enter()
        self._training.loop_begins(has_state=has_entered)

        def goes_on() -> bool:
            return number() < count and not self._training.position.stopped

        self._training.position.left &= not goes_on()  # set in a checkpoint of a shorter training
        if self._training.is_anothers and not goes_on():
            refusal.note(
                f"there is nothing to train: the checkpoint that the script starts from has {number()} of the {count}"
                f" {'epochs' if self.by_epoch() else 'iterations'} already, which session counts from the first one"
                " on: say how many there are in all"
            )
        with self.guard.in_loop():
            while goes_on():
                # Who joins or resumes in the middle of a turn runs its beginning again, and draws the same there.
                rng.seed_all(mix(self.seed, number(), rng.OF_A_TURN))
                begin()
                try:
                    yield number()
                except GeneratorExit:  # by break, or by an exception
                    leave = self._refuse_to_leave if self._is_at_beginning_again else self._leave
                    self._training.catch_up.arrives()
                    self._training.position.stopped = True
                    script_end.at_good_end(leave)
                    raise
                end()
            self.group.settle()
            self.collectives.leave()
        self._finish()

    def stop(self) -> None:
        """See :meth:`pilot.train.session.Session.stop`."""
        if not self._is_at_beginning_again:  # it would be for another epoch than when others were there
            self._stopping = self._training.position.stopping = True

    def _end_epoch(self, *, stop: bool) -> None:
        """Agree with the other ranks that the epoch is over, on what rank 0 has reported since the last one, and on
        whether it was the last.
        """
        self.end_batch()
        self.check.ours()
        ours, measured, self.measured = {STOP: 1.0} if stop else {}, self.measured, {}
        self.collectives.hold(END_OF_EPOCH, lambda rank, _ranks: ours | (measured if rank == 0 else {}))

    def _is_stopping(self) -> bool:
        """Also in a process that has come, or resumed, since a rank asked."""
        return self._stopping or self._training.position.stopping

    @property
    def _is_at_beginning_again(self) -> bool:
        """Whether the script runs the beginning of an epoch's body that others have run before, and trained on."""
        again = self.by_epoch() and self._training.catch_up.repeats
        return again and self.guard.looping and not self.guard.passing

    def _refuse_to_leave(self) -> None:
        raise UserError(
            "the script left its loop at an epoch's beginning, which it ran again because it came in the middle of that"
            " epoch, and where it had gone on before: it decides by what has changed since (what its model is worth);"
            " decide at the epoch's end"
        )

    def _leave(self) -> None:
        """The script left the loop by ``break``, and has ended."""
        self._end_epoch(stop=True)
        self._finish()

    def _finish(self) -> None:
        for log in self.step.logs:
            log.finished(self.group.enter())
        self.group.finish(self.metrics.copy)

    # --- what its loader needs ---------------------------------------------------------------------------------------

    def where(self) -> tuple[int, int, int, int, int]:
        """As its loader needs it. In the middle of a step, the position of its beginning."""
        position = self._training.position
        if self.step.is_open:
            member, revision = self.step.member, self.step.revision
        else:
            self.group.settle()
            member = self.group.enter()
            position, revision = self._training.position, self.group.revision
        return position.epoch, position.cursor, member.rank, member.size, revision

    def rehearsal(self) -> Rehearsal | None:
        return self.step.rehearsal

    def steps_done(self) -> int:
        return self._training.position.epoch_steps

    def align(self) -> None:
        """As its loader needs it; ends the script if the others have stopped."""
        self._expect_loop()
        self.group.settle()
        if self._turns is None or self._training.position.step % _TURNS_PER_CHECK < 2:
            self._training.trained.check_model()
        self.collectives.align()
        if self._training.position.stopped:
            self.collectives.leave()
            self.group.finish(self.metrics.copy)
            raise Released
        self.step.renew()

    def epoch_is_over(self) -> bool:
        self._expect_loop()
        before = self.where()
        if before[0] == self._ended:
            raise UserError(
                f"the batches of epoch {before[0]} have all been used: an epoch is one pass over session.loader;"
                f" the next epoch begins with the next turn of session.epochs{_MORE}"
            )
        if not self._training.position.at_end:
            self.align()
        if self.where() != before:
            return False
        self.collectives.arrive()  # with a state taken over at the end of the epoch
        self.check.user()
        if self._turns is not None:  # nothing of the script is between its epochs
            if before[1] == 0:
                raise UserError("session.iterations: an epoch has no full step; use a smaller batch, or no drop_last")
            self._training.next_epoch({})
            self.collectives.arrive()
            return False
        self._training.reached_end()
        self.collectives.reached_end()
        self._ended, self.guard.passing = before[0], False
        if before[1] == 0 and not self._told:
            self._told = True
            refusal.note(
                f"epoch {before[0]} has no step, so nothing is trained in it: there are no samples, or fewer than a"
                " full step of this group takes, which drop_last leaves out; use a smaller batch, or no drop_last"
            )
        # Who joins or resumes here has not done the last step, in which an optimizer may draw.
        rng.seed_all(mix(self.seed, self._training.position.step, rng.OF_AN_END))
        return True

    def by_epoch(self) -> bool:
        return self._turns is None

    def epoch_has(self, samples: int) -> None:
        self.metrics[EPOCH_SAMPLES] = float(samples)  # needed to check the ledger

    def begin(self, share: StepShare, batch: int) -> None:
        self.step.begin(share, batch)
        if batch == 0:
            self.check.before_step()

    def begin_uncounted(self, share: StepShare, batch: int) -> None:
        self.step.begin(share, batch, counts=False)

    def end_batch(self) -> None:
        was_open = self.step.is_open
        self.step.end_batch()
        if was_open and not self.step.is_open:  # otherwise it may have taken over a state to which it has not come yet
            self.collectives.arrive()

    def end_void_batch(self) -> bool:
        """The same for a script that goes on before it takes a batch; returns whether that is the same one again: then
        what the script does until it has it is undone.
        """
        void = self.step.is_void
        self.end_batch()
        if void:
            self._training.repeats()
        return void

    def stepped(self) -> None:
        """The script called ``session.step``."""
        if not self.step.is_open:
            self.collectives.arrive()
        if self._turns is not None:
            self._turns.stepped()

    def batches(self, rest: Rest) -> Iterator[Any]:
        self._expect_loop()
        if self._turns is not None:
            return self._turns.batches()
        self._passes += 1
        if self._passes > 1 and self._ended is None:
            raise UserError(
                "an epoch is one pass over session.loader, and this is a second one: keep using the first iterator, or"
                " take single batches with `for step in session.iterations(n): batch = loader.next()`"
            )
        return rest()

    def next_batch(self) -> Any:
        self._expect_loop()
        if self._turns is None:
            raise UserError("loader.next() is for session.iterations; in session.epochs use `for batch in loader:`")
        return self._turns.next()

    def _expect_loop(self) -> None:
        if not self.guard.looping:
            raise UserError(
                "iterate over session.loader inside `for epoch in session.epochs(n):` (instead of"
                " range(n)) or `for step in session.iterations(n):`, which tell all nodes when an epoch begins and ends"
                f"{_MORE}"
            )
        self.guard.expect_own_thread()
        self._training.position.begun = True

    # --- its parts ---------------------------------------------------------------------------------------------------

    def batches_made(self) -> Batches:
        """Those of the session's loader; :class:`UserError` if the script has not made it."""
        if self.made is None:
            raise UserError(
                "make the training loader with session.loader first: before session.epochs or session.iterations, and"
                " before session.rank, session.size, session.steps or an evaluation, which need the group (a script"
                " that makes its samples itself has them in the loop of session.iterations)"
            )
        return self.made

    def _resized(self, size: int) -> None:
        self.has_entered = True
        training, newcomers = self._training, self.group.newcomers
        rehearsal = newcomers.rehearsal(size, self.seat.size, training.position.parts)
        is_possible = training.sharding is None and not training.position.phase
        self.step.rehearsal = rehearsal = rehearsal if is_possible else None
        nodes = newcomers.uncertain - (rehearsal.rehearsing if rehearsal is not None else set())
        self.step.uncertain = [rank for rank in range(size) if rank // self.seat.size in nodes]
        self._scale(size if rehearsal is None else rehearsal.parts)

    def _scale(self, size: int) -> None:
        """The learning rate follows the number of ranks that divide a step's samples, if the batch does."""
        batching = self.batches_made().batching
        self._training.rate.nodes = batching.nodes(size) if batching.per_node is not None else 1


def group_of(
    environment: Mapping[str, str],
    seat: Seat,
    training: Training,
    exchanges: Exchanges,
    resized: Callable[[int], None],
    ties: NodeTies,
) -> RankGroup:
    """The group according to the agent's environment variables, see ``docs/processes.md``."""
    _claim()
    if (run := CheckedRun.of(environment)) is not None:
        return _on_course(run, training, exchanges, resized)
    if "PILOT_CONTROL_FD" not in environment:
        training.is_alone = True
        return RankGroup(training, resized)
    trainer = environment["PILOT_TRAINER"]
    link = WorkerSockets(int(environment["PILOT_CONTROL_FD"]), Path(environment["PILOT_WORKER_SOCKET"]))
    directory = Path(environment["PILOT_TRAINER_DIR"], "checkpoints")
    uid, kept = environment["PILOT_TRAINER_UID"], int(environment["PILOT_CHECKPOINTS_KEPT"])
    saver = Saver(trainer, uid, directory, kept, link.send, lambda: training.agreed_step, training.shards)
    interval_s = float(environment["PILOT_CHECKPOINT_INTERVAL_S"])
    stall_timer = StallTimer(float(environment["PILOT_SILENT_S"]), float(environment["PILOT_PATIENCE_S"]))
    return Elastic(trainer, seat, link, training, exchanges, saver, interval_s, stall_timer, resized, ties)


def _on_course(run: CheckedRun, training: Training, exchanges: Exchanges, resized: Callable[[int], None]) -> RankGroup:
    if training.sharding is not None:
        raise UserError("pilot check does not run sharded models: try the script on two nodes")
    from pilot.train.check.records import RecordedGroup
    from pilot.train.check.world import ProcessLink  # not in a process that trains

    training.accepted |= {GRADIENTS}  # what differs on a loop is found after its steps
    link: Any = ProcessLink(inherited(run.link).detach())
    return RecordedGroup(run, link, training, exchanges, resized)


_claimed: list[bool] = []


def _claim() -> None:
    """Ensure that the process has only one session."""
    if _claimed:
        raise UserError(
            "this process already has a session: train everything together in one session, and run the next"
            " training as a separate script"
        )
    _claimed.append(True)
