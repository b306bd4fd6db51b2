"""The session: what a user's script sees of all this."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import nn
from torch.utils.data import Dataset

from pilot.core.errors import UserError
from pilot.train import rng
from pilot.train.alone import Alone
from pilot.train.control import Words
from pilot.train.elastic import Elastic
from pilot.train.exchange import Exchange
from pilot.train.link import Link
from pilot.train.loader import Loader
from pilot.train.lr import LearningRate
from pilot.train.patience import Patience
from pilot.train.regroup import Membership, Seat
from pilot.train.reporter import Metrics
from pilot.train.sampler import Batching, Share, mix
from pilot.train.saver import Saver
from pilot.train.training import Scheduler, Training


class Group(Protocol):
    """The ranks that train together, as the session sees them."""

    revision: int
    """Changes when the group does, and when a step is void."""

    def enter(self) -> Membership:
        """Be in a group; waits for one."""

    def ring(self) -> None:
        """A part of the step's gradients is full."""

    def words(self, loss: float) -> Words:
        """What this rank says with the step."""

    def summed(self) -> bool:
        """Whether the sums of this step came."""

    def applied(self, words: Words, share: Share, metrics: Metrics) -> None:
        """The safe point after a step; ``words`` are the sums."""

    def finish(self, metrics: Metrics) -> None:
        """The loop is over; returns when the worker is let go."""


class Session:
    """An elastic training loop. Made by :func:`pilot.train.session`."""

    def __init__(self, training: Training, seed: int) -> None:
        self.seed = seed
        self._seat = Seat.of(os.environ)
        self._training = training
        self._exchange = Exchange(training.parameters())
        self._group: Group = self._make_group()
        self._loader: Loader | None = None
        self._share: Share | None = None
        self._member: Membership | None = None
        self._batch = 0
        self._stepped = True
        self._loss = 0.0
        self._max_norm: float | None = None
        self._metrics: dict[str, float] = {}

    # --- what scripts use --------------------------------------------------------------------------------------------

    @property
    def rank(self) -> int:
        """This worker's index in its group, which changes with the group."""
        return self._membership().rank

    @property
    def size(self) -> int:
        """How many workers the group has now."""
        return self._membership().size

    @property
    def local_rank(self) -> int:
        """This worker's index on its node, which never changes: which GPU is its own."""
        return self._seat.rank

    @property
    def steps(self) -> int:
        """Steps applied so far, over the trainer's whole life."""
        return self._training.position.step

    @property
    def state(self) -> dict[str, Any]:
        """The script's own values (numbers, strings, tensors, lists, dicts): they travel with rescales and
        checkpoints.
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
        drop_last : leave out an epoch's last step where it is not full (how many samples that is depends on the
            group's size)
        options : of torch's ``DataLoader``
        """
        if self._loader is not None:
            raise UserError("a session has one training loader; use torch's DataLoader for other data")
        batching = Batching(batch_size, global_batch_size, micro_batch_size, drop_last, self._seat.size)
        self._loader = Loader(self, dataset, batching, shuffle=shuffle, options=options)
        # Whoever checks the ledger needs to know how many samples an epoch has.
        self._metrics["epoch_samples"] = float(len(dataset))  # type: ignore[arg-type]
        return self._loader

    def epochs(self, count: int, **measures: Callable[[], float]) -> Iterator[int]:
        """The epochs still to do of ``count``, from the current one on. At their end the trainer has finished.

        Parameters
        ----------
        measures : called after each epoch, on each worker; reported under their names (``accuracy=...``)
        """
        self._group.enter()
        while (epoch := self._training.position.epoch) < count:
            yield epoch
            self.report(**{name: measure() for name, measure in measures.items()})
            self._training.next_epoch()
        self._group.finish(self._current_metrics)

    def step(self, loss: torch.Tensor | float | None = None) -> bool:
        """Call it where a plain loop calls ``optimizer.step()``, once for each batch of the loader.

        Sums the gradients over the group and steps optimizer and scheduler. Whether it did: not where the batch was a
        micro-batch before the last, nor where the group broke; then the loader gives the same samples again.

        Parameters
        ----------
        loss : the mean over the batch, for the reports
        """
        share = self._open_share()
        weight = share.weight(self._batch)
        if loss is not None and weight:
            self._loss += weight * (loss.item() if isinstance(loss, torch.Tensor) else loss)
        if self._batch + 1 < len(share.batches):
            return False
        self._share = None
        words = self._sum()
        if words is None:
            self._exchange.drop()
            self._member = None
            self._group.enter()
            return False
        self._apply(share, words)
        return True

    def clip_grad_norm(self, max_norm: float) -> None:
        """In this step, scale the gradients (of the whole group) so that their norm is at most ``max_norm``."""
        self._max_norm = max_norm

    def report(self, **metrics: float) -> None:
        """Have these values shown with the trainer's progress."""
        self._metrics.update({name: float(value) for name, value in metrics.items()})

    # --- what the loader uses ----------------------------------------------------------------------------------------

    def where(self) -> tuple[int, int, int, int, int]:
        """See :class:`~pilot.train.loader.Course`."""
        group, position = self._group.enter(), self._training.position
        return position.epoch, position.cursor, group.rank, group.size, self._group.revision

    def begin(self, share: Share, batch: int) -> None:
        """See :class:`~pilot.train.loader.Course`."""
        if not self._stepped:
            raise UserError("the script took a batch from session.loader without session.step for the one before")
        self._member = group = self._group.enter()
        if batch == 0:
            self._loss, self._max_norm = 0.0, None
            rng.seed_all(mix(self.seed, self._training.position.step, group.rank))
        self._share, self._batch, self._stepped = share, batch, False
        if group.size > 1 or len(share.batches) > 1:
            self._exchange_begins(share, batch)

    # --- a step ------------------------------------------------------------------------------------------------------

    def _exchange_begins(self, share: Share, batch: int) -> None:
        if batch == 0:
            self._exchange.begin(self._group.ring)
        self._exchange.begin_batch(share.weight(batch), last=batch + 1 == len(share.batches))

    def _open_share(self) -> Share:
        if self._share is None or self._stepped:
            raise UserError("session.step needs a batch of session.loader, and each batch one session.step")
        self._stepped = True
        return self._share

    def _sum(self) -> Words | None:
        """The sums over the group, None where it broke."""
        words = self._group.words(self._loss)
        if self._exchange.open:
            self._exchange.finish(words)
        if not self._group.summed():
            return None
        return self._exchange.take() if self._exchange.open else words

    def _apply(self, share: Share, words: Words) -> None:
        if self._max_norm is not None:
            norm = nn.utils.clip_grad_norm_(self._training.parameters(), self._max_norm)
            self._metrics["grad_norm"] = float(norm)
        self._training.apply(self._membership().generation, share)
        self._member = None
        self._metrics |= {"loss": words.loss, "learning_rate": self._training.effective_rate()}
        self._group.applied(words, share, self._current_metrics)

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

    def _make_group(self) -> Group:
        environment = os.environ
        if "PILOT_CONTROL_FD" not in environment:
            return Alone(self._training)
        trainer = environment["PILOT_TRAINER"]
        link = Link(int(environment["PILOT_CONTROL_FD"]), Path(environment["PILOT_WORKER_SOCKET"]))
        directory = Path(environment["PILOT_TRAINER_DIR"], "checkpoints")
        saver = Saver(trainer, directory, int(environment["PILOT_CHECKPOINTS_KEPT"]), link.tell)
        interval_s = float(environment["PILOT_CHECKPOINT_INTERVAL_S"])
        patience = Patience(float(environment["PILOT_SILENT_S"]))
        return Elastic(
            trainer, self._seat, link, self._training, self._exchange, saver, interval_s, patience, self._resized
        )


def session(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    scheduler: Scheduler | None = None,
    *,
    schedule: str = "step",
    lr_rule: str = "linear",
    warmup_steps: int = 0,
    seed: int = 0,
) -> Session:
    """Make a training loop elastic; see ``docs/elastic-script.md``.

    Under ``pilot submit`` the script's process is a worker of a trainer; under plain ``python`` it runs alone, the
    same way.

    Parameters
    ----------
    model, optimizer, scheduler : as in a plain script; ``session.step`` steps the last two
    schedule : whether the scheduler counts every ``step`` or every ``epoch``
    lr_rule : how the learning rate follows the group's size with a fixed batch per node: ``linear``, ``sqrt`` or
        ``none``
    warmup_steps : over which it follows
    seed : of the order of samples, their augmentation and the ranks' generators
    """
    return Session(Training(model, optimizer, scheduler, schedule, LearningRate(lr_rule, warmup_steps)), seed)
