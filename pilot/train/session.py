"""The session: what a user's script sees of all this."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import nn
from torch.utils.data import Dataset, default_collate

from pilot.core.errors import UserError
from pilot.train import identity, refusal, rng, script_end
from pilot.train.agreement_log import END_OF_EPOCH, STOP, Sums
from pilot.train.alarm import Alarm
from pilot.train.collectives import Collectives
from pilot.train.evaluation import Evaluation, Function
from pilot.train.exchange import Exchange
from pilot.train.group import group_of
from pilot.train.guards import StepGuard, TrainedSet
from pilot.train.loader import Loader
from pilot.train.lr import LearningRate
from pilot.train.membership import Membership, Seat
from pilot.train.sampler import Batching, StepShare, mix
from pilot.train.script_end import Released
from pilot.train.state_check import StateCheck
from pilot.train.step_words import Words
from pilot.train.stream import Stream
from pilot.train.training import Scheduler, Training


class Session:
    """An elastic training loop. Made by :func:`pilot.train.session`."""

    def __init__(self, training: Training, seed: int, wire_dtype: str | None) -> None:
        self.seed = seed
        self._seat = Seat.of(os.environ)
        self._training = training
        training.identity["the seed"] = str(seed)
        self._exchange = Exchange(training.parameters(), wire_dtype)
        self._group = group_of(os.environ, self._seat, training, self._exchange, self._resized)
        self._collectives = Collectives(self._group, training)
        self._check = StateCheck(training)
        self._alarm = Alarm(training)
        self._guard = StepGuard(training.optimizer)
        self._trained = TrainedSet(training.model, training.optimizer)
        self._loader: Loader | Stream | None = None
        self._share: StepShare | None = None
        self._member: Membership | None = None
        self._batch = 0
        self._stepped = True
        self._sums: Words | None = None
        self._counted = False
        self._ended: int | None = None
        self._loss: float | torch.Tensor = 0.0
        self._max_norm: float | None = None
        self._stopping = False
        self._waited_s = 0.0
        self._metrics: dict[str, float] = {}

    # --- what scripts use --------------------------------------------------------------------------------------------

    @property
    def rank(self) -> int:
        """This process's index in its group, which changes with the group."""
        return self._membership().rank

    @property
    def size(self) -> int:
        """How many training processes the group has now."""
        return self._membership().size

    @property
    def local_rank(self) -> int:
        """This process's index on its node, which never changes: which GPU is its own."""
        return self._seat.rank

    @property
    def steps(self) -> int:
        """Steps applied so far, over the trainer's whole life."""
        return self._training.position.step

    @property
    def waited_s(self) -> float:
        """Seconds that this process has waited for the sums of its gradients, over its life."""
        return self._waited_s

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
        shuffle : a new order in each epoch
        replacement, num_samples : draw an epoch's samples with replacement, so many of them (default: as many as the
            dataset has)
        drop_last : leave out an epoch's last step where it is not full (how many samples that is depends on the
            group's size)
        options : of torch's ``DataLoader``, apart from those that say which samples come: see
            ``docs/elastic-script.md``
        """
        batching = self._batching(batch_size, global_batch_size, micro_batch_size, drop_last)
        order: Any = {"shuffle": shuffle, "replacement": replacement, "num_samples": num_samples}
        self._loader = loader = Loader(self, dataset, batching, **order, options=options)
        self._training.identity |= identity.of_data(
            loader.length, batching, shuffle=loader.order.shuffle, replacement=replacement
        )
        self.epoch_has(loader.length)
        return loader

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
        """The training loader, in place of :meth:`loader`, for samples that come one after the other.

        Parameters
        ----------
        source : gives an epoch's samples in the same order whenever it is iterated over, on all nodes; it may have
            ``from_cursor(n)``, which gives those from number n on, and ``set_epoch(n)``
        batch_size, global_batch_size, micro_batch_size, drop_last : see :meth:`loader`
        collate_fn : makes a batch of a list of samples
        """
        batching = self._batching(batch_size, global_batch_size, micro_batch_size, drop_last)
        self._training.identity |= identity.of_data(None, batching, shuffle="False")
        self._loader = stream = Stream(self, source, batching, collate_fn)
        return stream

    def epochs(self, count: int, **measures: Callable[[], float]) -> Iterator[int]:
        """The epochs still to do of ``count``, from the current one on. At their end the trainer has finished.

        Parameters
        ----------
        measures : called after each epoch, on each worker; rank 0's values are reported under their names
            (``accuracy=...``), and are what a scheduler gets
        """
        self._check.whole()
        self._group.enter()
        with self._guard.in_loop():
            while (position := self._training.position).epoch < count and not position.stopped:
                self._collectives.here()
                self._trained.check_model()
                self._ended, self._guard.passing = None, False
                try:
                    yield position.epoch
                except GeneratorExit:  # by break, or by an exception
                    script_end.at_good_end(self._leave)
                    raise
                self._end_epoch({name: float(measure()) for name, measure in measures.items()})
        self._group.finish(self._current_metrics)

    def stop(self) -> None:
        """Let this epoch be the last: :meth:`epochs` ends with it, on all ranks, whichever of them asks."""
        self._stopping = True

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
        if self._share is not None:
            raise UserError("session.evaluate belongs between two steps: after session.step, or outside the loop")
        self._check.user()
        began_s = time.monotonic()
        means = Evaluation(self._training.model, dataset, function, batch_size, options).run(self._collectives)
        self._group.rested(time.monotonic() - began_s)
        return means

    def step(self, loss: torch.Tensor | float | None = None) -> bool:
        """Call it where a plain loop calls ``optimizer.step()``, once for each batch of the loader.

        Sums the gradients over the group and steps optimizer and scheduler. Whether it did: not where the batch was a
        micro-batch before the last, nor where the group broke; then the loader gives the same samples again. (A step
        that the loss scaler left out counts: its samples were used.)

        Parameters
        ----------
        loss : the mean over the batch, for the reports
        """
        share = self._open_share()
        self._stepped = True
        if not self._counted:
            self._count(share, loss)
        elif loss is not None:
            raise UserError("give the loss to session.sum, which tells it to the others, and not to session.step")
        if self._batch + 1 < len(share.batches):
            return False
        self._share = None
        words, self._sums = self._sums, None
        if words is None:
            self._member = None
            self._group.enter()
        else:
            self._apply(share, words)
        self._collectives.here()
        return words is not None

    def sum(self, loss: torch.Tensor | float | None = None) -> bool:
        """Between backward and :meth:`step`, for a script that uses the gradients: put the sums over the group into
        ``p.grad``. Whether they are there: not where the batch was a micro-batch before the last, nor where the group
        broke. ``step`` follows in any case, without the loss.

        Parameters
        ----------
        loss : as of :meth:`step`
        """
        share = self._open_share()
        if not self._counted:
            self._count(share, loss)
        return self._sums is not None

    def clip_grad_norm(self, max_norm: float) -> None:
        """In this step, scale the gradients (of the whole group) so that their norm is at most ``max_norm``."""
        self._max_norm = max_norm

    def report(self, **metrics: float) -> None:
        """Have these values shown with the trainer's progress."""
        self._metrics.update({name: float(value) for name, value in metrics.items()})

    # --- what the loader uses ----------------------------------------------------------------------------------------

    def where(self) -> tuple[int, int, int, int, int]:
        """See :class:`~pilot.train.loader.Course`."""
        self._group.settle()
        group, position = self._group.enter(), self._training.position
        return position.epoch, position.cursor, group.rank, group.size, self._group.revision

    def align(self) -> None:
        """See :class:`~pilot.train.loader.Course`. Ends the script where the others have stopped."""
        self._expect_loop()
        self._group.settle()
        self._collectives.align()
        if self._training.position.stopped:
            self._group.finish(self._current_metrics)
            raise Released

    def epoch_is_over(self) -> bool:
        """See :class:`~pilot.train.loader.Course`."""
        self._expect_loop()
        before = self.where()
        if before[0] == self._ended:
            raise UserError(
                f"the batches of epoch {before[0]} are over: an epoch has one pass over session.loader; the next begins"
                " with the next turn of session.epochs"
            )
        if not self._training.position.at_end:
            self.align()
        if self.where() != before:
            return False
        self._check.user()
        self._training.reached_end()
        self._ended, self._guard.passing = before[0], False
        return True

    def epoch_has(self, samples: int) -> None:
        """See :class:`~pilot.train.loader.Course`."""
        self._metrics["epoch_samples"] = float(samples)  # whoever checks the ledger needs to know it

    def begin(self, share: StepShare, batch: int) -> None:
        """See :class:`~pilot.train.loader.Course`."""
        if not self._stepped:
            raise UserError("the script took a batch from session.loader without session.step for the one before")
        if batch == 0:
            self._check.before_step()
        self._member = group = self._group.enter()
        if batch == 0:
            self._loss, self._max_norm = 0.0, None
        # For each micro-batch: how its samples were loaded leaves no trace in what the model draws.
        rng.seed_all(mix(self.seed, self._training.position.step, group.rank, *([batch] if batch else [])))
        self._share, self._batch, self._stepped, self._counted = share, batch, False, False
        self._guard.passing = True
        self._alarm.held.forward_begins()
        if batch == 0:
            self._exchange.begin(self._group.ring, alone=group.size == len(share.batches) == 1)
        self._exchange.begin_batch(share.weight(batch), last=batch + 1 == len(share.batches))

    def _expect_loop(self) -> None:
        if not self._guard.looping:
            raise UserError(
                "batches of session.loader are taken in the body of `for epoch in session.epochs(n):` (in place of"
                " range(n)): it says when all nodes begin and end an epoch"
            )

    # --- a step ------------------------------------------------------------------------------------------------------

    def _open_share(self) -> StepShare:
        if self._share is None or self._stepped:
            raise UserError("session.step needs a batch of session.loader, and each batch one session.step")
        return self._share

    def _count(self, share: StepShare, loss: torch.Tensor | float | None) -> None:
        """Count the batch; after the step's last one get the sums over the group (None where it broke)."""
        self._counted = True
        self._alarm.held.forward_ended()
        weight = share.weight(self._batch)
        if loss is not None and weight:
            # Not a number yet where it is on a GPU: that would wait for all of backward.
            self._loss = self._loss + weight * (loss.detach() if isinstance(loss, torch.Tensor) else loss)
        if self._batch + 1 == len(share.batches):
            self._trained.check()
            self._sums = self._sum()

    def _sum(self) -> Words | None:
        self._exchange.flush()
        step, size = self._training.position.step, self._membership().size
        words = self._group.words(float(self._loss)).with_checksum(self._alarm.checksum(step, size))
        self._exchange.finish(words)
        began_s = time.monotonic()
        came = self._group.summed()
        self._waited_s += time.monotonic() - began_s
        if not came:
            self._exchange.drop()
            return None
        words = self._exchange.take()
        if not self._alarm.compare(words, step, self._group, size):
            self._exchange.drop()
            return None
        self._group.sums_came()
        return words

    def _apply(self, share: StepShare, words: Words) -> None:
        if self._max_norm is not None:
            self._metrics["grad_norm"] = self._training.clip(self._max_norm)
        with self._guard.session_steps():
            self._training.apply(self._membership().generation, share)
        self._member = None
        self._metrics |= {"loss": words.loss} | self._training.metrics()
        self._group.applied(words, share, self._current_metrics)

    def _end_epoch(self, measured: Sums) -> None:
        """The ranks agree that the epoch is over, on what was measured, and whether it was the last."""
        self._check.whole()
        stop = {STOP: 1.0} if self._stopping else {}
        agreed = self._collectives.hold(END_OF_EPOCH, lambda rank, _ranks: stop | (measured if rank == 0 else {}))
        self.report(**{name: value for name, value in (agreed or {}).items() if name != STOP})

    def _leave(self) -> None:
        """The script left the loop by ``break``, and has ended."""
        self._stopping = True
        self._end_epoch({})
        self._group.finish(self._current_metrics)

    def _batching(self, per_node: int | None, whole: int | None, micro: int | None, drop_last: bool) -> Batching:
        if self._loader is not None:
            raise UserError("a session has one training loader; use torch's DataLoader for other data")
        return Batching(per_node, whole, micro, drop_last, self._seat.size)

    def _current_metrics(self) -> dict[str, float]:
        return dict(self._metrics)

    def _membership(self) -> Membership:
        """That of the step under way, even where its group has gone by now; else the present one."""
        return self._member or self._group.enter()

    # --- the group ---------------------------------------------------------------------------------------------------

    def _resized(self, size: int) -> None:
        if self._loader is None:
            raise UserError("make the training loader with session.loader before session.epochs")
        batching = self._loader.batching
        nodes = batching.nodes(size) if batching.per_node is not None else 1
        self._training.rate = self._training.rate.resized(nodes, self._training.position.step)


def session(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    scheduler: Scheduler | None = None,
    *,
    schedule: str | None = None,
    scaler: torch.amp.GradScaler | None = None,
    lr_rule: str = "linear",
    warmup_steps: int = 0,
    wire_dtype: str | None = None,
    seed: int = 0,
) -> Session:
    """Make a training loop elastic; see ``docs/elastic-script.md``.

    Under ``pilot submit`` the script's process is a worker of a trainer; under plain ``python`` it runs alone, the
    same way.

    Parameters
    ----------
    model, optimizer, scheduler : as in a plain script; ``session.step`` steps the last two
    schedule : to be said where there is a scheduler: whether it counts every ``step`` or every ``epoch``; for
        ``ReduceLROnPlateau`` the name of the measure of ``session.epochs`` that it takes after each epoch
    scaler : of the loss, for mixed precision: the script calls ``scaler.scale(loss).backward()``, the session the rest
    lr_rule : how the learning rate follows the group's size with a fixed batch per node: ``linear``, ``sqrt`` or
        ``none``
    warmup_steps : over which it follows
    wire_dtype : ``bfloat16`` or ``float16``: float32 gradients travel between nodes as half the bytes, each rounded
        before the sum and after it
    seed : of the order of samples, their augmentation and the ranks' generators
    """
    refusal.show_in_one_line()
    rate = LearningRate(lr_rule, warmup_steps)
    return Session(Training(model, optimizer, scheduler, schedule, rate, scaler), seed, wire_dtype)
