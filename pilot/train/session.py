"""The session: the interface that a training script uses."""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Any

from torch.utils.data import DataLoader, Dataset, default_collate

from pilot.core.errors import UserError
from pilot.core.goal import EPOCHS, ITERATIONS
from pilot.core.run_identity import ALL_EPOCHS, ALL_ITERATIONS, SEED
from pilot.train.alike import sample_numbers
from pilot.train.check.settings import Run
from pilot.train.course import SessionCourse
from pilot.train.data import rng
from pilot.train.data.loader import DatasetBatches
from pilot.train.data.loader_options import arguments_of
from pilot.train.data.sampler import Batching, mix
from pilot.train.data.stream import StreamBatches
from pilot.train.data.training_loader import Batches, Draws, Loader, Stream
from pilot.train.data.uncopied import Uncopied
from pilot.train.evaluation import Evaluation, Function
from pilot.train.gradients.exchanges import Exchanges
from pilot.train.group_choice import group_of
from pilot.train.metric_log import metric_log
from pilot.train.node.membership import Membership, Seat
from pilot.train.node.node_ties import NodeFabric
from pilot.train.ranks import script_end
from pilot.train.ranks.collectives import Collectives
from pilot.train.script import refusal
from pilot.train.state import identity
from pilot.train.state.agreement_log import END_OF_EPOCH, STOP, Sums
from pilot.train.state.loading import Stateful
from pilot.train.state.session_checks import (
    check_callback,
    check_count,
    check_scheduled,
    check_tracked,
    check_whole,
    norm_of,
    reported,
)
from pilot.train.state.state_check import StateCheck
from pilot.train.state.training import Training
from pilot.train.steps.guards import StepGuard
from pilot.train.steps.rollback import Rollback
from pilot.train.steps.step import Number, Step


class Session(Uncopied):
    """An elastic training loop; create one with :func:`pilot.train.session`.

    Raises
    ------
    pilot.core.errors.UserError
        Every method raises it if it is called in the wrong place, or with values that cannot work. Its one line says
        what to change; unless the script catches it, it becomes the reason why the trainer failed.
    """

    _known_as = "a session"

    def __init__(self, training: Training, seed: int, wire_dtype: str | None, *, has_rule: bool) -> None:
        self.seed = seed
        self._has_rule = has_rule
        self._seat = Seat.of(os.environ)
        self._checked = Run.of(os.environ)
        self._training = training
        training.identity[SEED] = str(seed)
        self._metrics: dict[str, float] = {}
        self._check = StateCheck(training)
        self._guard = StepGuard(training.steppers)
        self._rollback = Rollback(training)
        trained, sharded = [*training.trained.named.values()], training.sharding is not None
        fabric = NodeFabric.of(os.environ, self._seat, trained, sharded=sharded)
        exchanges = Exchanges(training, wire_dtype, fabric.group)
        self._group = group_of(os.environ, self._seat, training, exchanges, self._resized, fabric.ties)
        self._collectives = Collectives(self._group, training)
        self._step = Step(
            training, self._group, exchanges, self._guard, self._rollback, seed, self._metrics, fabric.ties
        )
        self._course = SessionCourse(
            seed,
            training,
            self._group,
            self._collectives,
            self._step,
            self._guard,
            self._check,
            self._metrics,
        )
        self._step.rehearsed = self._rehearsed
        self._batches: Batches | None = None
        self._measured: Sums = {}
        self._stopping = False
        self._has_entered = False
        self._has_looped = False

    # --- what scripts use --------------------------------------------------------------------------------------------

    @property
    def rank(self) -> int:
        """This process's index in the group; it changes when the group does."""
        return self._entered().rank

    @property
    def size(self) -> int:
        """The current number of training processes in the group."""
        return self._entered().size

    @property
    def local_rank(self) -> int:
        """This process's index on its node, which never changes: use it to choose a GPU."""
        return self._seat.rank

    @property
    def steps(self) -> int:
        """Steps applied since the trainer began, over all changes and restarts. (If optimizers are stepped by name, a
        batch counts from its first ``session.step`` on.) Asked for before the loop, it waits for the group: a process
        that has just started does not know it.
        """
        if not (self._has_entered or self._training.restoring):
            self._entered()  # waits for it
        return self._training.position.step + self._step.has_stepped

    @property
    def samples(self) -> int:
        """Samples of all ranks in the steps that :attr:`steps` counts; known when that is."""
        own = self._step.samples_of_all if self.steps > self._training.position.step else 0
        return self._training.position.samples + own

    @property
    def share(self) -> int:
        """In :meth:`iterations` without a loader: how many samples this rank is to draw for its next
        :meth:`step`; 0 after it.
        """
        return self._step.samples

    @property
    def state(self) -> dict[str, Any]:
        """The script's own values, by name. They survive rescales, are saved in checkpoints, and keep their types.

        A value may be a tensor, a numpy array of numbers or text, a number, a string, bytes, None, or a list, tuple,
        set or dict (keys: str or int) of these. Anything else is refused, with its location, when it is found: when
        :meth:`epochs` begins, before a step (as often as costs nothing), before an evaluation, and at the end of each
        epoch.
        """
        return self._training.user

    def loader(
        self,
        dataset: Dataset[Any] | DataLoader[Any],
        batch_size: int | None = None,
        *,
        global_batch_size: int | None = None,
        micro_batch_size: int | None = None,
        shuffle: bool = True,
        replacement: bool = False,
        num_samples: int | None = None,
        drop_last: bool = False,
        **options: Any,
    ) -> Loader:
        """Create the training loader; a session has exactly one.

        Parameters
        ----------
        dataset : map-style dataset with a length; or a ``DataLoader`` of one, of which everything is taken (its batch
            size as ``global_batch_size``, unless one is given) but the order of its samples
        batch_size : samples per node and step, divided among the node's ranks; the global batch grows with the group,
            and the learning rate follows by ``lr_rule``
        global_batch_size : alternative: samples per step over all nodes; the learning rate stays the same
        micro_batch_size : most samples that a rank processes at once; a larger share comes as several batches whose
            gradients accumulate
        shuffle : whether each epoch has a new order
        replacement, num_samples : draw ``num_samples`` samples per epoch with replacement (default: the dataset's
            length)
        drop_last : skip an epoch's last step if it is not full (how many samples that drops depends on the group's
            size)
        options : options of torch's ``DataLoader``, except those that choose samples (``docs/elastic-reference.md``);
            ``num_workers="auto"`` finds the smallest number that keeps training from waiting
        """
        if isinstance(dataset, DataLoader):
            options = arguments_of(dataset) | options
            size, drop_last, shuffle = (options.pop(name) for name in ("batch_size", "drop_last", "shuffle"))
            if batch_size is None and global_batch_size is None:
                global_batch_size = size
            dataset = dataset.dataset
        batching = self._batching(batch_size, global_batch_size, micro_batch_size, drop_last)
        order: Any = {"shuffle": shuffle, "replacement": replacement, "num_samples": num_samples}
        self._batches = batches = DatasetBatches(self._course, dataset, batching, **order, options=options)
        if self._checked is not None:
            self._checked.cut(batches)
        self._training.identity |= identity.of_data(
            batches.length,
            batching,
            shuffle=batches.order.shuffle,
            replacement=replacement,
            samples=sample_numbers.checksum(dataset),
        )
        self._course.epoch_has(batches.length)
        self._step.trains_on(dataset)
        return Loader(batches, dataset)

    def stream(
        self,
        source: Iterable[Any],
        batch_size: int | None = None,
        *,
        global_batch_size: int | None = None,
        micro_batch_size: int | None = None,
        drop_last: bool = False,
        collate_fn: Callable[[list[Any]], Any] = default_collate,
    ) -> Stream:
        """Create the training loader, instead of :meth:`loader`, for samples that arrive one after the other.

        Parameters
        ----------
        source : an iterable that yields an epoch's samples in the same order on all nodes, each time; it may have
            ``from_cursor(n)``, which starts at sample n, and ``set_epoch(n)``
        batch_size, global_batch_size, micro_batch_size, drop_last : see :meth:`loader`
        collate_fn : makes a batch from a list of samples
        """
        batching = self._batching(batch_size, global_batch_size, micro_batch_size, drop_last)
        self._training.identity |= identity.of_data(None, batching, shuffle="False")
        self._batches = batches = StreamBatches(self._course, source, batching, collate_fn)
        if self._checked is not None:
            self._checked.cut(batches)
        return Stream(batches)

    def epochs(self, count: int, **others: object) -> Iterator[int]:
        """Yield the indices, from 0, of those of ``count`` epochs that are still to do; the first is the current one.
        After the last one the trainer has finished.

        Parameters
        ----------
        count : epochs of the whole training, done ones included
        others : refused
        """
        if others:
            name = next(iter(others))
            raise UserError(
                f"session.epochs takes the number of epochs alone: in place of {name}=function, call"
                f" session.report({name}=function()) at the end of the loop's body"
            )
        return script_end.closed_at_end(self._epochs(count))

    def iterations(
        self, count: int, *, global_batch_size: int | None = None, micro_batch_size: int | None = None
    ) -> Iterator[int]:
        """Yield the indices, from 0, of those of ``count`` steps that are still to do, one per turn; epochs advance by
        themselves. After the last step the trainer has finished.

        Within a turn, ``for batch in loader:`` yields the batches of the step, or ``loader.next()`` the next one of
        them; then call ``session.step``. A turn whose step is void is repeated with the same number.

        Parameters
        ----------
        count : steps of the whole training, done ones included
        global_batch_size, micro_batch_size : without a loader, for a script that makes its samples itself: how many
            all ranks draw for a step, of which each draws :attr:`share`, at most ``micro_batch_size`` at once. Without
            them, too, all ranks compute the same, and the gradient of rank 0 counts
        """
        if self._batches is None:
            batching = self._batching(None, global_batch_size or 1, micro_batch_size, drop_last=False)
            self._training.identity |= identity.of_data(None, batching, shuffle="by the script")
            self._batches = Draws(self._course, batching)
        elif global_batch_size is not None or micro_batch_size is not None:
            raise UserError("session.iterations: the loader has the batch size; give it to one of the two")
        return script_end.closed_at_end(self._iterations(count))

    def _epochs(self, count: int) -> Generator[int, None, None]:
        def end() -> None:
            if not self._is_stopping():
                self._course.end_pass()
            self._end_epoch(stop=self._is_stopping())

        check_count("session.epochs", count)
        if self._checked is not None:
            count = min(count, self._checked.epochs)
        self._metrics[EPOCHS] = float(count)
        self._step.is_last = lambda share, size: (
            self._training.position.epoch + 1 == count and self._made_batches().ends_with(share, size)
        )
        yield from self._loop(lambda: self._training.position.epoch, count, self._course.new_epoch, end)

    def _iterations(self, count: int) -> Generator[int, None, None]:
        check_count("session.iterations", count)
        if self._checked is not None:
            count = min(count, self._checked.epochs * self._checked.steps)
        self._step.is_stopping = self._is_stopping
        self._metrics[ITERATIONS] = float(count)
        course, batches = self._course, self._made_batches()
        self._step.is_last = lambda _share, _size: self._training.position.step + 1 == count
        course.by_iteration(batches)
        yield from self._loop(lambda: self._training.position.step, count, course.new_turn, course.end_turn)

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
        self._check.whole()
        check_scheduled(self._training.steppers, self._training.tracked.values())
        by_epoch = EPOCHS in self._metrics
        self._training.ends_at(ALL_EPOCHS if by_epoch else ALL_ITERATIONS, count)
        has_entered = self._has_entered
        self._group.enter()
        self._training.loop_begins(has_state=has_entered)

        def goes_on() -> bool:
            return number() < count and not self._training.position.stopped

        self._training.position.left &= not goes_on()  # set in a checkpoint of a shorter training
        if self._training.is_anothers and not goes_on():
            refusal.note(
                f"there is nothing to train: the checkpoint that the script starts from has {number()} of the {count}"
                f" {'epochs' if by_epoch else 'iterations'} already, which session counts from the first one on: say"
                " how many there are in all"
            )
        with self._guard.in_loop():
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
            self._group.settle()
            self._collectives.leave()
        self._finish()

    def stop(self) -> None:
        """Make this epoch the last one: :meth:`epochs` then ends on all ranks, whichever of them asks. In
        :meth:`iterations`: make the next step the last one.
        """
        if not self._is_at_beginning_again:  # it would be for another epoch than when others were there
            self._stopping = self._training.position.stopping = True

    def evaluate(
        self, dataset: Dataset[Any], function: Function, batch_size: int = 256, **options: Any
    ) -> dict[str, float]:
        """Run a validation pass: returns the means over ``dataset`` of the values that ``function`` returns, by name.

        Each rank evaluates a part, so all ranks must call it, between two steps; all get the same result. The model is
        in evaluation mode, without gradients.

        Parameters
        ----------
        dataset : map-style dataset with a length
        function : takes a batch and returns values by name, each a mean over the batch (as torch's losses are)
        batch_size : most samples that a rank processes at once
        options : options of torch's ``DataLoader``
        """
        self._expect_group()
        self._course.came_back_void()
        if self._step.is_open:
            raise UserError("call session.evaluate between two steps: after session.step, or outside the loop")
        self._check.user()
        began_s = time.monotonic()
        in_step = self._training.sharding.size if self._training.sharding is not None else 1
        if (checked := self._checked) is not None:
            function = functools.wraps(function)(lambda batch, given=function: given(checked.cast(batch)))
        evaluation = Evaluation(self._training.model, dataset, function, batch_size, options, in_step)
        with rng.untouched():  # each rank draws for its own part, or not at all if the others have the result
            means = evaluation.run(self._collectives)
        self._group.rested(time.monotonic() - began_s)
        return means

    def step(self, loss: Number = None, name: str | None = None, *, weight: Number = None) -> bool:
        """Call this where a plain loop calls ``optimizer.step()``: once for each batch of the loader.

        Sums the gradients over the group and steps the optimizer and the scheduler. Returns whether it did: not for a
        micro-batch before the last, and not if the group broke; then the loader yields the same samples again. (A step
        that the loss scaler skipped counts, because its samples were used.)

        Parameters
        ----------
        loss : mean over the batch, for progress reports
        name : the optimizer to step, if the session has a dict of them: then call it for each one that uses the batch;
            without a name all are stepped together
        weight : weight of the batch's gradient (and loss) in the mean over the step, instead of its number of samples;
            for example its number of tokens, if the loss is a mean over tokens. Give it in every step or in none
        """
        stepped = self._step.step(loss, name, weight)
        self._course.stepped()
        return stepped

    def sum(self, loss: Number = None, name: str | None = None, *, weight: Number = None) -> bool:
        """For a script that uses the gradients: between backward and :meth:`step`, put the sums over the group into
        ``p.grad``. Returns whether they are there: not for a micro-batch before the last, and not if the group broke.
        Call ``step`` afterwards in any case, without loss and weight.

        Parameters
        ----------
        loss, name, weight : as of :meth:`step`
        """
        return self._step.sum(loss, name, weight)

    def clip_grad_norm(self, max_norm: float, *others: object) -> None:
        """Scale the gradients of this step (and optimizer) so that their 2-norm over the group is at most ``max_norm``.

        Replaces torch's function, whose other arguments are refused; call it before :meth:`step`.
        """
        self._step.max_norm = norm_of(max_norm, others)

    def track(self, name: str, stateful: Stateful) -> None:
        """Keep ``stateful``'s state with the model's, through rescales and in checkpoints: an average of the
        parameters, another model, a scheduler of your own. Call it before :meth:`epochs`, and before what waits for the
        group (:attr:`rank`).

        Parameters
        ----------
        name : its name in checkpoints
        stateful : has ``state_dict`` and ``load_state_dict``; its state holds what :attr:`state` may hold
        """
        check_tracked(
            name, stateful, self._training.tracked, looping=self._guard.looping, has_entered=self._has_entered
        )
        check_whole(name, stateful)
        self._training.tracked[name] = stateful
        self._training.identity[f"the tracked object {name}"] = type(stateful).__name__

    def on_restore(self, function: Callable[[], object]) -> None:
        """Call ``function`` whenever a state was taken over (from another rank or a checkpoint) or restored after a
        void step: for whatever the script derives from the model, tracked objects, :attr:`state` or :attr:`steps`.
        (The process is not in a group then.)
        """
        check_callback(function)
        self._training.on_restore.append(function)

    def report(self, **metrics: float) -> None:
        """Show these values, by name, with the trainer's progress; studies compare trials by one of them, and
        ``ReduceLROnPlateau`` gets one (``schedule=``). What differs between ranks counts as rank 0 has it.
        """
        values = reported(metrics)
        self._metrics.update(values)
        self._measured.update(values)
        self._training.reports.note(self._training.position.step, values)
        for log in self._step.logs:
            log.report(self._training.position.step, values)

    def log_to(self, kind: str, folder: str | os.PathLike[str]) -> None:
        """Log the loss, the learning rate and what the script reports, each step once, as one run through all changes
        of the group. Call it before :meth:`epochs` on all ranks; rank 0 writes.

        Parameters
        ----------
        kind : ``tensorboard``
        folder : the run's folder, on a file system that all nodes share
        """
        self._step.logs.append(metric_log(kind, folder))

    # --- its parts ---------------------------------------------------------------------------------------------------

    def _entered(self) -> Membership:
        """The group; waits for it."""
        self._expect_group()
        return self._step.member

    def _expect_group(self) -> None:
        if self._training.restoring:
            raise UserError(
                "a function of session.on_restore runs while its process is in no group, so it cannot use session.rank,"
                " session.size or session.evaluate; it may use the models, tracked objects, session.state and"
                " session.steps"
            )

    def _end_epoch(self, *, stop: bool) -> None:
        """Agree with the other ranks that the epoch is over, on what rank 0 has reported since the last one, and on
        whether it was the last.
        """
        self._course.came_back()
        self._check.ours()
        ours, measured, self._measured = {STOP: 1.0} if stop else {}, self._measured, {}
        self._collectives.hold(END_OF_EPOCH, lambda rank, _ranks: ours | (measured if rank == 0 else {}))

    def _is_stopping(self) -> bool:
        """Also in a process that has come, or resumed, since a rank asked."""
        return self._stopping or self._training.position.stopping

    @property
    def _is_at_beginning_again(self) -> bool:
        """Whether the script runs the beginning of an epoch's body that others have run before, and trained on."""
        again = EPOCHS in self._metrics and self._training.catch_up.repeats
        return again and self._guard.looping and not self._guard.passing

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
        for log in self._step.logs:
            log.finished(self._group.enter())
        self._group.finish(self._metrics.copy)

    def _batching(self, per_node: int | None, whole: int | None, micro: int | None, drop_last: bool) -> Batching:
        if self._batches is not None:
            raise UserError(
                "a session has one training loader: to train on two datasets make one whose samples hold one of each;"
                " what is not trained on may use torch's DataLoader"
            )
        if micro is not None and self._training.steppers.apart:
            raise UserError(
                "micro_batch_size needs optimizers that are stepped together: give pilot.train.session a list of them,"
                " or use a smaller batch"
            )
        sharded = self._training.sharding is not None
        batching = Batching(per_node, whole, micro, drop_last, self._seat.size, in_step=sharded)
        if per_node is not None and not self._has_rule:
            raise UserError(
                "batch_size= is per node, so the batch grows with the nodes: say in pilot.train.session how the"
                " learning rate follows, lr_rule='linear', 'sqrt' or 'none'; or give global_batch_size=, with"
                " which training is that of one node"
            )
        self._training.samples_per_tick = batching.of_one_node
        return batching

    def _made_batches(self) -> Batches:
        if self._batches is None:
            raise UserError(
                "make the training loader with session.loader first: before session.epochs or session.iterations, and"
                " before session.rank, session.size, session.steps or an evaluation, which need the group (a script"
                " that makes its samples itself has them in the loop of session.iterations)"
            )
        return self._batches

    def _resized(self, size: int) -> None:
        self._has_entered = True
        training, newcomers = self._training, self._group.newcomers
        rehearsal = newcomers.rehearsal(size, self._seat.size, training.position.parts)
        is_possible = training.sharding is None and not training.position.phase
        self._step.rehearsal = rehearsal = rehearsal if is_possible else None
        nodes = newcomers.uncertain - (rehearsal.rehearsing if rehearsal is not None else set())
        self._step.uncertain = [rank for rank in range(size) if rank // self._seat.size in nodes]
        self._scale(size if rehearsal is None else rehearsal.parts)

    def _rehearsed(self) -> None:
        self._scale(self._step.member.size)

    def _scale(self, size: int) -> None:
        """The learning rate follows the number of ranks that divide a step's samples, if the batch does."""
        batching = self._made_batches().batching
        nodes = batching.nodes(size) if batching.per_node is not None else 1
        self._training.rate = self._training.rate.resized(nodes, self._training.position.step)
