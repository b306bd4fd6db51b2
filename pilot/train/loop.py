"""The loop of a session: its epochs or iterations, the position that its loader sees
(:class:`pilot.train.data.training_loader.LoopView`), and the parts that do the work.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator
from typing import Any

from pilot.core.errors import UserError
from pilot.protocol.remaining_work import EPOCH_SAMPLES, EPOCHS, ITERATIONS
from pilot.protocol.run_identity import ALL_EPOCHS, ALL_ITERATIONS
from pilot.train.between.between import Between, between_nodes
from pilot.train.check.settings import CheckedRun
from pilot.train.data import rng
from pilot.train.data.deals import Range
from pilot.train.data.rehearsal import Rehearsal
from pilot.train.data.sampler import Batching, Bounds, StepShare, mix
from pilot.train.data.training_loader import Batches, LoopView, Rest
from pilot.train.gradients.exchanges import Exchanges
from pilot.train.iterations import Turns
from pilot.train.joining import group_of
from pilot.train.node.membership import Seat
from pilot.train.node.node_ties import node_fabric
from pilot.train.ranks import script_end
from pilot.train.ranks.collectives import Collectives
from pilot.train.ranks.group import RankGroup
from pilot.train.ranks.script_end import Released
from pilot.train.rounds.exchange import OuterExchange
from pilot.train.rounds.rounds import Rounds
from pilot.train.script import refusal
from pilot.train.state.progress import END_OF_EPOCH, STOP, Sums
from pilot.train.state.session_checks import check_count, check_scheduled
from pilot.train.state.state_check import StateCheck
from pilot.train.state.training import Training
from pilot.train.steps.guards import StepGuard
from pilot.train.steps.rollback import Rollback
from pilot.train.steps.step import Step

_TURNS_PER_CHECK = 100
"""In ``session.iterations`` the model's modules are checked in the first two of this many turns."""
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
_SECOND_LOOP = (
    "a session has one loop, at whose end training is finished, and this is a second one: make a single session.epochs"
    " (or session.iterations) for the entire training, and change settings in its body (if epoch == 3:)"
)


class SessionLoop(LoopView):
    """The loop of one session.

    ``metrics``: values to report with the trainer's progress; ``measured``: values that the script has reported since
    the last epoch's end; ``made``: the session's batches, once the script has made its loader; ``checked``: the
    settings of this process in ``pilot check``; ``has_entered``: whether the process has entered a group.

    Parameters
    ----------
    training : the state that is trained
    seed : seed of the sample order and the ranks' random generators
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
        between = Between()
        if self.checked is None:
            between = between_nodes(os.environ, self.seat, trained, in_rounds=training.outer is not None)
        of_rank_process = training.outer is None and not between.in_use
        node_group, ties = node_fabric(os.environ, self.seat, trained, sharded=sharded, of_rank_process=of_rank_process)
        exchanges = Exchanges(training, wire_dtype, node_group, between)
        outer = OuterExchange(training.outer, node_group) if training.outer is not None else None
        self.of_all = group_of(os.environ, self.seat, training, outer or exchanges, self._resized, ties, between)
        self.rounds: Rounds | None = None
        if outer is not None:
            made: Any = self.batches_made  # a dataset's: others are refused
            self.rounds = Rounds(self.of_all, training, outer, exchanges, self.seat, ties, made, self.metrics)
        self.group: RankGroup = self.rounds or self.of_all
        training.shares.made = self.batches_made
        self.collectives = Collectives(self.of_all, training)
        rollback = Rollback(training)
        self.step = Step(training, self.group, exchanges, self.guard, rollback, seed, self.metrics, ties)
        self.step.rehearsed = lambda: self._scale(self.step.member.size)
        if self.rounds is not None:
            self.rounds.logs = self.step.logs
        self._ended: int | None = None
        self._passes = 0
        self._turns: Turns | None = None
        self._noted = self._has_looped = self._stopping = False

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
        self.step.summing.is_last = lambda share, size: (
            self._training.position.epoch + 1 == count and self.batches_made().ends_with(share, size)
        )
        yield from self._loop(lambda: self._training.position.epoch, count, begin, end)

    def iterations(self, count: int) -> Generator[int, None, None]:
        """See :meth:`pilot.train.session.Session.iterations`. A turn whose step is void is repeated."""
        check_count("session.iterations", count)
        if self.checked is not None:
            count = min(count, self.checked.epochs * self.checked.steps)
        self.metrics[ITERATIONS] = float(count)
        if self.rounds is None:
            self.step.summing.is_stopping = self._is_stopping
        else:
            self.rounds.steps_left = lambda: count - self._training.position.step
            self.rounds.is_stopping = self._is_stopping
        self.step.summing.is_last = lambda _share, _size: self._training.position.step + 1 == count
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
        """Yield the ``number`` of each turn up to ``count``, and call ``begin`` and ``end`` around it."""
        if self._has_looped:
            raise UserError(_SECOND_LOOP)
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
                f" {'epochs' if self.by_epoch() else 'iterations'} already; pass their total number, done ones included"
            )
        with self.guard.in_loop():
            while goes_on():
                # A process that joins or resumes within a turn runs its beginning again, and draws the same numbers.
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
            self.end_round()
            self.group.settle()
            self.collectives.leave()
        self._finish()

    def stop(self) -> None:
        """See :meth:`pilot.train.session.Session.stop`."""
        if not self._is_at_beginning_again:  # the other ranks have decided this for this epoch
            self._stopping = self._training.position.stopping = True

    def _end_epoch(self, *, stop: bool) -> None:
        """Agree that the epoch is over, on rank 0's reported values, and on whether it was the last one."""
        self.end_batch()
        self.end_round()
        self.check.ours()
        ours, measured, self.measured = {STOP: 1.0} if stop else {}, self.measured, {}
        self.collectives.hold(END_OF_EPOCH, lambda rank, _ranks: ours | (measured if rank == 0 else {}))

    def _is_stopping(self) -> bool:
        """Return whether a rank has called ``session.stop``, perhaps before this process joined or resumed."""
        return self._stopping or self._training.position.stopping

    @property
    def _is_at_beginning_again(self) -> bool:
        """Whether the script runs the beginning of an epoch's body which others have run before they trained on."""
        again = self.by_epoch() and self._training.catch_up.repeats
        return again and self.guard.looping and not self.guard.passing

    def _refuse_to_leave(self) -> None:
        raise UserError(
            "the script left its loop at an epoch's beginning, which this process runs again because it joined or"
            " resumed within the epoch, and where other processes went on; leave the loop at an epoch's end instead:"
            " values such as the model's score change within an epoch"
        )

    def _leave(self) -> None:
        """Finish the training after the script left the loop by ``break``, and ended."""
        self._end_epoch(stop=True)
        self._finish()

    def _finish(self) -> None:
        for log in self.step.logs:
            log.finished(self.of_all.enter())
        self.of_all.finish(self.metrics.copy)

    # --- LoopView, for the loader ------------------------------------------------------------------------------------

    def where(self) -> tuple[int, int, int, int, int]:
        position = self._training.position
        if self.step.is_open:
            member, revision = self.step.member, self.step.revision
        else:
            self.group.settle()
            member = self.group.enter()
            position, revision = self._training.position, self.group.revision
        return position.epoch, 0 if position.back else position.cursor, member.rank, member.size, revision

    def rehearsal(self) -> Rehearsal | None:
        return self.step.rehearsal

    def steps_done(self) -> int:
        return self._training.position.epoch_steps

    def bounds(self, step: int) -> Bounds:
        position = self._training.position
        rehearsal = self.step.rehearsal if step == position.epoch_steps else None
        return self._training.shares.bounds(position.step + step - position.epoch_steps, rehearsal)

    def align(self) -> None:
        """See :class:`~pilot.train.data.training_loader.LoopView`; ends the script if the others have stopped."""
        self._expect_loop()
        if self.rounds is not None and self.rounds.goes_on():
            return
        self.group.settle()
        if self.rounds is not None:
            self._training.position.stopped |= self.rounds.steps_left() <= 0  # another node has done the last one
            self.collectives.scatter()  # a node may be in an evaluation, and the others have opened no round yet
        if self._turns is None or self._training.position.step % _TURNS_PER_CHECK < 2:
            self._training.trained.check_model()
        self.collectives.align()
        if self._training.position.stopped:
            self.collectives.leave()
            self.of_all.finish(self.metrics.copy)
            raise Released
        self.step.renew()
        if self.rounds is not None:
            self.rounds.open()
            self.rounds.goes_on()  # the next group may have become ready during the exchange

    def deal(self) -> list[Range] | None:
        return self.rounds.deal() if self.rounds is not None else None

    def nodes(self) -> int:
        return self.rounds.place().size // self.seat.size if self.rounds is not None else 1

    def end_round(self) -> None:
        """End the open round, if there is one: the script does something that all nodes do in the same position."""
        if self.rounds is not None:
            self.rounds.end()

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
        if self._turns is not None:  # the script has no code between epochs
            if before[1] == 0:
                raise UserError("session.iterations: an epoch has no full step; use a smaller batch, or no drop_last")
            self._training.next_epoch({})
            self.collectives.arrive()
            return False
        self._training.reached_end()
        self.collectives.reached_end()
        self._ended, self.guard.passing = before[0], False
        if before[1] == 0 and not self._noted:
            self._noted = True
            refusal.note(
                f"epoch {before[0]} has no step, so nothing is trained in it: there are no samples, or fewer than a"
                " full step of this group takes, which drop_last leaves out; use a smaller batch, or no drop_last"
            )
        # A process that joins or resumes here has not done the last step, in which an optimizer may draw.
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
        if was_open and not self.step.is_open:  # otherwise the script may not have reached a state taken over
            self.collectives.arrive()
        if self.rounds is not None and not self.step.is_open:
            self.rounds.goes_on()

    def end_void_batch(self) -> bool:
        """End the batch of a script that does not ask for the next one. Return whether its step was void: then the
        batch is repeated, and the script's changes until then are undone.
        """
        void = self.step.is_void
        self.end_batch()
        if void:
            self._training.repeats()
        return void

    def stepped(self) -> None:
        """Note that the script called ``session.step``."""
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
                "iterate over session.loader inside `for epoch in session.epochs(n):` (instead of range(n)) or `for"
                f" step in session.iterations(n):`, by which all nodes know when an epoch begins and ends{_MORE}"
            )
        self.guard.expect_own_thread()
        self._training.position.begun = True

    def batches_made(self) -> Batches:
        """Return the batches of the session's loader; :class:`UserError` if the script has not made it."""
        if self.made is None:
            raise UserError(
                "make the training loader with session.loader first: before session.epochs or session.iterations, and"
                " before session.rank, session.size, session.steps or an evaluation, which need the group (a script"
                " that makes its samples itself has them in the loop of session.iterations)"
            )
        return self.made

    def batching(
        self, per_node: int | None, total: int | None, micro: int | None, drop_last: bool, shares: str
    ) -> Batching:
        """Return the batching of the session's only loader; :class:`UserError` if these sizes cannot be used."""
        if self.made is not None:
            raise UserError(
                "a session has one training loader: to train on two datasets make one whose samples hold one of each;"
                " for data that is not trained on, use torch's DataLoader"
            )
        if micro is not None and self._training.steppers.by_name:
            raise UserError(
                "micro_batch_size needs optimizers that are stepped together: give pilot.train.session a list of them,"
                " or use a smaller batch"
            )
        if self.rounds is not None and (per_node is None or total is not None):
            raise UserError(
                "with sync= (or --sync) each node takes batches of its own: pass batch_size= (samples per node and"
                " inner step) to session.loader, and no global_batch_size="
            )
        sharded = self._training.sharding is not None
        batching = Batching(per_node, total, micro, drop_last, self.seat.size, in_step=sharded, sharing=shares)
        if per_node is not None and self._training.rate.rule is None and self.rounds is None:
            raise UserError(
                "batch_size= is per node, so the batch grows with the nodes: pass lr_rule='linear', 'sqrt' or 'none' to"
                " pilot.train.session, by which the learning rate follows; or pass global_batch_size=, with which"
                " training is the same as on one node"
            )
        self._training.samples_per_tick = batching.of_one_node
        return batching

    def _resized(self, size: int) -> None:
        self.has_entered = True
        if self.rounds is not None:  # a node's batch stays as it is, and nodes have nothing to compare
            return
        training, newcomers = self._training, self.group.newcomers
        rehearsal = newcomers.rehearsal(size, self.seat.size, training.position.parts)
        is_possible = training.sharding is None and not training.position.phase
        self.step.rehearsal = rehearsal = rehearsal if is_possible else None
        nodes = newcomers.uncertain - (rehearsal.rehearsing if rehearsal is not None else set())
        self.step.uncertain = [rank for rank in range(size) if rank // self.seat.size in nodes]
        self._scale(size if rehearsal is None else rehearsal.parts)

    def _scale(self, size: int) -> None:
        """Scale the learning rate by the number of nodes that divide a step's samples, if the batch grows with it."""
        batching = self.batches_made().batching
        self._training.rate.nodes = batching.nodes(size) if batching.per_node is not None else 1
