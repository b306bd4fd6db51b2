"""The session: what a user's script sees of all this."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from torch.utils.data import Dataset, default_collate

from pilot.core.errors import UserError
from pilot.core.goal import EPOCH_SAMPLES, EPOCHS, ITERATIONS
from pilot.core.run_identity import SEED
from pilot.train import identity, script_end
from pilot.train.agreement_log import END_OF_EPOCH, STOP, Sums
from pilot.train.check_group import CheckGroup
from pilot.train.collectives import Collectives
from pilot.train.course import SessionCourse
from pilot.train.evaluation import Evaluation, Function
from pilot.train.exchanges import Exchanges
from pilot.train.group import group_of
from pilot.train.guards import StepGuard
from pilot.train.loader import Loader
from pilot.train.membership import Seat
from pilot.train.metric_log import metric_log
from pilot.train.node_fabric import NodeFabric
from pilot.train.rollback import Rollback
from pilot.train.sampler import Batching
from pilot.train.session_checks import check_reported, check_tracked, check_whole
from pilot.train.state_check import StateCheck
from pilot.train.step import Number, Step
from pilot.train.stream import Stream
from pilot.train.training import Stateful, Training
from pilot.train.training_loader import TrainingLoader


class Session:
    """An elastic training loop. Made by :func:`pilot.train.session`."""

    def __init__(self, training: Training, seed: int, wire_dtype: str | None) -> None:
        self.seed = seed
        self._seat = Seat.of(os.environ)
        self._training = training
        training.identity[SEED] = str(seed)
        self._metrics: dict[str, float] = {}
        self._check = StateCheck(training)
        self._guard = StepGuard(training.steppers.optimizers.values())
        self._rollback = Rollback(training, with_user=training.steppers.apart)
        fabric = NodeFabric.of(os.environ, self._seat, training)
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
            lambda: dict(self._metrics),
            self._epoch_has,
        )
        self._loader: TrainingLoader | None = None
        self._by_iteration = False
        self._stopping = False

    # --- what scripts use --------------------------------------------------------------------------------------------

    @property
    def rank(self) -> int:
        """This process's index in its group, which changes with the group."""
        return self._step.member.rank

    @property
    def size(self) -> int:
        """How many training processes the group has now."""
        return self._step.member.size

    @property
    def local_rank(self) -> int:
        """This process's index on its node, which never changes: which GPU is its own."""
        return self._seat.rank

    @property
    def steps(self) -> int:
        """Steps applied so far, over the trainer's whole life. (Where optimizers are stepped by name, one that has
        begun counts.)
        """
        position = self._training.position
        return position.step + (position.phase > 0)

    @property
    def waited_s(self) -> float:
        """Seconds that this process has waited for the sums of its gradients, over its life."""
        return self._step.waited_s

    @property
    def state(self) -> dict[str, Any]:
        """The script's own values: they travel with rescales and checkpoints, and keep their types.

        Tensors, numpy arrays of numbers or text, numbers, strings, bytes, None, and list, tuple, set and dict (keys:
        str or int) of these. Anything else is refused, with its place, when it is seen: when :meth:`epochs` begins,
        before a following step (as often as costs nothing), before an evaluation, and at the end of each epoch.
        """
        return self._training.user

    def loader(
        self,
        dataset: Dataset[Any],
        batch_size: int | None = None,
        *,
        global_batch_size: int | None = None,
        micro_batch_size: int | None = None,
        accumulate: int = 1,
        shuffle: bool = True,
        replacement: bool = False,
        num_samples: int | None = None,
        drop_last: bool = False,
        **options: Any,
    ) -> Loader:
        """The training loader; a session has one.

        Parameters
        ----------
        dataset : map-style, with a length
        batch_size : samples per node and step, divided over its ranks; the global batch grows with the group, the
            learning rate by ``lr_rule``
        global_batch_size : instead: samples per step over all nodes; the learning rate stays
        micro_batch_size : the most that a rank takes at once; its share comes in several batches whose gradients
            accumulate
        accumulate : instead: so many batches make a step. The script calls backward for each, with its loss divided by
            their number, and then once ``session.step``
        shuffle : a new order in each epoch
        replacement, num_samples : draw an epoch's samples with replacement, so many of them (default: as many as the
            dataset has)
        drop_last : leave out an epoch's last step where it is not full (how many samples that is depends on the
            group's size)
        options : of torch's ``DataLoader``, apart from those that say which samples come: see
            ``docs/elastic-script.md``; ``num_workers="auto"`` finds the least number with which training does not wait
        """
        batching = self._batching(batch_size, global_batch_size, micro_batch_size, accumulate, drop_last)
        order: Any = {"shuffle": shuffle, "replacement": replacement, "num_samples": num_samples}
        self._loader = loader = Loader(self._course, dataset, batching, **order, options=options)
        self._training.identity |= identity.of_data(
            loader.length, batching, shuffle=loader.order.shuffle, replacement=replacement
        )
        self._epoch_has(loader.length)
        return loader

    def stream(
        self,
        source: Iterable[Any],
        batch_size: int | None = None,
        *,
        global_batch_size: int | None = None,
        micro_batch_size: int | None = None,
        accumulate: int = 1,
        drop_last: bool = False,
        collate_fn: Callable[[list[Any]], Any] = default_collate,
    ) -> Stream:
        """The training loader, in place of :meth:`loader`, for samples that come one after the other.

        Parameters
        ----------
        source : gives an epoch's samples in the same order whenever it is iterated over, on all nodes; it may have
            ``from_cursor(n)``, which gives those from number n on, and ``set_epoch(n)``
        batch_size, global_batch_size, micro_batch_size, accumulate, drop_last : see :meth:`loader`
        collate_fn : makes a batch of a list of samples
        """
        batching = self._batching(batch_size, global_batch_size, micro_batch_size, accumulate, drop_last)
        self._training.identity |= identity.of_data(None, batching, shuffle="False")
        self._loader = stream = Stream(self._course, source, batching, collate_fn)
        return stream

    def epochs(self, count: int, **measures: Callable[[], float]) -> Iterator[int]:
        """The epochs still to do of ``count``, from the current one on. At their end the trainer has finished.

        Parameters
        ----------
        measures : called after each epoch, on each worker; rank 0's values are reported under their names
            (``accuracy=...``), and are what a scheduler gets
        """

        def end() -> None:
            if not self._stopping:
                self._course.end_pass()
            self._end_epoch({name: float(measure()) for name, measure in measures.items()})

        self._metrics[EPOCHS] = float(count)
        yield from self._loop(lambda: self._training.position.epoch, count, self._course.new_epoch, end)

    def iterations(self, count: int) -> Iterator[int]:
        """The steps still to do of ``count``, each in a turn of its own, from the present one on; epochs follow one
        another by themselves. After the last one the trainer has finished.

        In a turn ``for batch in loader:`` gives the batches of the step, and ``loader.next()`` the next one of them;
        then comes ``session.step``. A turn whose step is void is run again with the same number.
        """
        self._by_iteration = True
        self._metrics[ITERATIONS] = float(count)
        course, loader = self._course, self._made_loader()
        course.by_iteration(loader, lambda: self._end_epoch({}))
        yield from self._loop(lambda: self._training.position.step, count, course.new_turn, course.end_turn)

    def _loop(
        self, number: Callable[[], int], count: int, begin: Callable[[], None], end: Callable[[], None]
    ) -> Iterator[int]:
        """Up to ``count``: a turn's ``number``, between its ``begin`` and its ``end``."""
        self._check.whole()
        self._group.enter()
        with self._guard.in_loop():
            while number() < count and not self._training.position.stopped:
                begin()
                try:
                    yield number()
                except GeneratorExit:  # by break, or by an exception
                    script_end.at_good_end(self._leave)
                    raise
                end()
            self._group.settle()
        self._finish()

    def stop(self) -> None:
        """Let this epoch be the last: :meth:`epochs` ends with it, on all ranks, whichever of them asks. In a loop by
        iteration: let the next step be the last.
        """
        self._stopping = True
        self._step.stopping = self._by_iteration

    def evaluate(
        self, dataset: Dataset[Any], function: Function, batch_size: int = 256, **options: Any
    ) -> dict[str, float]:
        """A validation pass: the mean of what ``function`` gives, by name, over all of ``dataset``.

        Each rank takes a part, so all of them call it, between two steps; all get the same. The model is in evaluation
        mode, without gradients.

        Parameters
        ----------
        dataset : map-style, with a length
        function : takes a batch and gives values by name, each the mean over the batch (as torch's losses are)
        batch_size : samples that a rank takes at once
        options : of torch's ``DataLoader``
        """
        self._step.came_back()
        if self._step.is_open:
            raise UserError("session.evaluate belongs between two steps: after session.step, or outside the loop")
        self._check.user()
        began_s = time.monotonic()
        in_step = self._training.sharding.size if self._training.sharding is not None else 1
        means = Evaluation(self._training.model, dataset, function, batch_size, options, in_step).run(self._collectives)
        self._group.rested(time.monotonic() - began_s)
        return means

    def step(self, loss: Number = None, name: str | None = None, *, weight: Number = None) -> bool:
        """Call it where a plain loop calls ``optimizer.step()``, once for each batch of the loader (where that has
        ``accumulate``: once for all batches of a step).

        Sums the gradients over the group and steps optimizer and scheduler. Whether it did: not where the batch was a
        micro-batch before the last, nor where the group broke; then the loader gives the same samples again. (A step
        that the loss scaler left out counts: its samples were used.)

        Parameters
        ----------
        loss : the mean over the batch, for the reports
        name : of the optimizer to step, where the session has a dict of them: then it is called for each that the batch
            is for; without a name it steps all at once
        weight : of the batch's gradient (and loss) in their mean over all batches of the step, in place of its number
            of samples; such as its number of tokens, where the loss is a mean over these. In every step or in none
        """
        stepped = self._step.step(loss, name, weight)
        self._course.stepped()
        return stepped

    def sum(self, loss: Number = None, name: str | None = None, *, weight: Number = None) -> bool:
        """Between backward and :meth:`step`, for a script that uses the gradients: put the sums over the group into
        ``p.grad``. Whether they are there: not where the batch was a micro-batch before the last, nor where the group
        broke. ``step`` follows in any case, without loss and weight.

        Parameters
        ----------
        loss, name, weight : as of :meth:`step`
        """
        return self._step.sum(loss, name, weight)

    def clip_grad_norm(self, max_norm: float) -> None:
        """In this step (of this optimizer), scale the gradients of the whole group so that their norm is at most
        ``max_norm``.
        """
        self._step.max_norm = max_norm

    def track(self, name: str, stateful: Stateful) -> None:
        """Have ``stateful``'s state travel with the model's, and saved: an average of the parameters, another model, a
        scheduler of the script's own. Before :meth:`epochs`.

        Parameters
        ----------
        name : of it, in checkpoints
        stateful : has ``state_dict`` and ``load_state_dict``; its state holds what :attr:`state` may hold
        """
        check_tracked(name, stateful, self._training.tracked, looping=self._guard.looping)
        check_whole(name, stateful)
        self._training.tracked[name] = stateful
        self._training.identity[f"the tracked object {name}"] = type(stateful).__name__

    def on_restore(self, function: Callable[[], object]) -> None:
        """Have ``function`` called whenever a state was taken over (from another rank, or a checkpoint) or put back
        after a step that was void: for what the script derives from model, tracked objects or :attr:`state`.
        """
        self._training.on_restore.append(function)

    def report(self, **metrics: float) -> None:
        """Have these values shown with the trainer's progress."""
        check_reported(metrics)
        values = {name: float(value) for name, value in metrics.items()}
        self._metrics.update(values)
        for log in self._step.logs:
            log.report(self._training.position.step, values)

    def log_to(self, kind: str, folder: str | os.PathLike[str]) -> None:
        """Have loss, learning rate and what the script reports logged, each step once, as one run through all changes
        of the group. Before :meth:`epochs`, on all ranks; rank 0 writes.

        Parameters
        ----------
        kind : ``tensorboard``
        folder : of the run, on a file system that all nodes share
        """
        if not isinstance(self._group, CheckGroup):
            self._step.logs.append(metric_log(kind, folder))

    # --- its parts ---------------------------------------------------------------------------------------------------

    def _end_epoch(self, measured: Sums) -> None:
        """The ranks agree that the epoch is over, on what was measured, and whether it was the last."""
        self._step.came_back()
        self._check.whole()
        stop = {STOP: 1.0} if self._stopping else {}
        agreed = self._collectives.hold(END_OF_EPOCH, lambda rank, _ranks: stop | (measured if rank == 0 else {}))
        self.report(**{name: value for name, value in (agreed or {}).items() if name != STOP})

    def _leave(self) -> None:
        """The script left the loop by ``break``, and has ended."""
        self._stopping = True
        self._end_epoch({})
        self._finish()

    def _finish(self) -> None:
        for log in self._step.logs:
            log.finished(self._group.enter())
        self._group.finish(lambda: dict(self._metrics))

    def _batching(
        self, per_node: int | None, whole: int | None, micro: int | None, accumulate: int, drop_last: bool
    ) -> Batching:
        if self._loader is not None:
            raise UserError("a session has one training loader; use torch's DataLoader for other data")
        if (micro is not None or accumulate != 1) and self._training.steppers.apart:
            raise UserError(
                "micro_batch_size goes with optimizers that are stepped together, as does accumulate: give"
                " pilot.train.session a list of them, or a smaller batch"
            )
        sharded = self._training.sharding is not None
        batching = Batching(per_node, whole, micro, drop_last, self._seat.size, accumulate, in_step=sharded)
        self._training.samples_per_tick = batching.of_one_node
        return batching

    def _made_loader(self) -> TrainingLoader:
        if self._loader is None:
            raise UserError("make the training loader with session.loader before session.epochs or session.iterations")
        return self._loader

    def _epoch_has(self, samples: int) -> None:
        self._metrics[EPOCH_SAMPLES] = float(samples)  # whoever checks the ledger needs to know it

    def _resized(self, size: int) -> None:
        batching = self._made_loader().batching
        nodes = batching.nodes(size) if batching.per_node is not None else 1
        self._training.rate = self._training.rate.resized(nodes, self._training.position.step)
