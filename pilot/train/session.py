"""The session: the interface that a training script uses."""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, SupportsIndex

from torch.utils.data import DataLoader, Dataset, default_collate

from pilot.core.errors import UserError
from pilot.protocol.run_identity import SEED
from pilot.submission.seldom import SYNC, DiLoCo, parsed
from pilot.train.alike import sample_numbers
from pilot.train.check.settings import CheckedRun
from pilot.train.data import rng
from pilot.train.data.loader import DatasetBatches, arguments_of
from pilot.train.data.sampler import BALANCED
from pilot.train.data.stream import StreamBatches
from pilot.train.data.training_loader import Draws, Loader, Stream, Uncopied
from pilot.train.evaluation import Evaluation, Function
from pilot.train.loop import SessionLoop
from pilot.train.metric_log import metric_log
from pilot.train.node.membership import Membership, Seat
from pilot.train.ranks import script_end
from pilot.train.state import identity
from pilot.train.state.loading import Stateful
from pilot.train.state.session_checks import check_callback, check_tracked, check_whole, norm_of, reported
from pilot.train.state.stepper import LearningRate, Optimizers, Scalers, Schedulers
from pilot.train.state.training import Models, Training
from pilot.train.steps.step import Number


class Session(Uncopied):
    """An elastic training loop; create one with :func:`pilot.train.session`.

    Raises
    ------
    pilot.core.errors.UserError
        By every method, if it is called in the wrong place or with invalid values. The message has one line with the
        change to make; unless the script catches the error, it becomes the reason why the trainer failed.
    """

    _known_as = "a session"

    def __init__(self, training: Training, seed: int, wire_dtype: str | None) -> None:
        self.seed = seed
        training.identity[SEED] = str(seed)
        self._training = training
        self._loop = loop = SessionLoop(training, seed, wire_dtype)
        self._group, self._step, self._metrics = loop.of_all, loop.step, loop.metrics

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
        return Seat.on_node(os.environ).rank

    @property
    def steps(self) -> int:
        """The number of steps applied since the trainer began, over all changes and restarts. (If optimizers are
        stepped by name, a batch counts from its first ``session.step`` on.) Before the loop it waits for the group.
        """
        if not (self._loop.has_entered or self._training.restoring):
            self._entered()
        return self._training.position.step + self._step.has_stepped

    @property
    def samples(self) -> int:
        """The number of samples of all ranks in :attr:`steps`."""
        own = self._step.samples_of_all if self.steps > self._training.position.step else 0
        return self._training.position.samples + own

    @property
    def share(self) -> int:
        """The number of samples to draw for the next :meth:`step`, in :meth:`iterations` without a loader."""
        return self._step.samples

    @property
    def state(self) -> dict[str, Any]:
        """The script's own values, by name. They survive rescales, are saved in checkpoints, and keep their types.

        A value may be a tensor, a numpy array of numbers or text, a number, a string, bytes, None, or a list, tuple,
        set or dict (keys: str or int) of these. Other values are refused, with their location, at checks: when
        :meth:`epochs` begins, before steps (as often as costs nothing), before an evaluation, and at each epoch's end.
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
        shares: str = BALANCED,
        **options: Any,
    ) -> Loader:
        """Create the training loader; a session has exactly one.

        Parameters
        ----------
        dataset : map-style dataset with a length; or a ``DataLoader`` of one, whose options are taken (its batch size
            as ``global_batch_size``, unless one is given), but not its order of samples
        batch_size : samples per node and step, divided among the node's ranks; the global batch grows with the group,
            and the learning rate follows by ``lr_rule``
        global_batch_size : alternative: samples per step over all nodes; the learning rate stays the same
        micro_batch_size : most samples that a rank processes at once; a larger share comes as several batches whose
            gradients accumulate
        shuffle : whether each epoch has a new order
        replacement, num_samples : draw ``num_samples`` samples per epoch with replacement (default: the dataset's
            length)
        drop_last : skip an epoch's last step if it is not full (the number of dropped samples depends on the group)
        shares : how ``global_batch_size`` is divided: "balanced": faster ranks get more, so that all finish together,
            but without ``micro_batch_size`` at most a quarter more than an equal share; "free": without that limit, if
            each node's memory suffices; "equal": all the same
        options : options of torch's ``DataLoader``, except those that choose samples (``docs/reference/session.md``)
        """
        if isinstance(dataset, DataLoader):
            options = arguments_of(dataset) | options
            size, drop_last, shuffle = (options.pop(name) for name in ("batch_size", "drop_last", "shuffle"))
            if batch_size is None and global_batch_size is None:
                batch_size, global_batch_size = (None, size) if self._loop.rounds is None else (size, None)
            dataset = dataset.dataset
        batching = self._loop.batching(batch_size, global_batch_size, micro_batch_size, drop_last, shares)
        order: Any = {"shuffle": shuffle, "replacement": replacement, "num_samples": num_samples}
        self._loop.made = batches = DatasetBatches(self._loop, dataset, batching, **order, options=options)
        if self._loop.checked is not None:
            self._loop.checked.cut(batches)
        self._training.identity |= identity.of_data(
            batches.length,
            batching,
            shuffle=batches.order.shuffle,
            replacement=replacement,
            samples=sample_numbers.checksum(dataset),
        )
        self._loop.epoch_has(batches.length)
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
        shares: str = BALANCED,
        collate_fn: Callable[[list[Any]], Any] = default_collate,
    ) -> Stream:
        """Create the training loader, instead of :meth:`loader`, for samples that arrive one after the other.

        Parameters
        ----------
        source : an iterable that yields an epoch's samples in the same order on all nodes, each time; it may have
            ``from_cursor(n)``, which starts at sample n (otherwise the first n are read and skipped), and
            ``set_epoch(n)``, which is called before each epoch
        batch_size, global_batch_size, micro_batch_size, drop_last, shares : see :meth:`loader`
        collate_fn : makes a batch from a list of samples
        """
        if self._loop.rounds is not None:
            raise UserError("sync= deals out samples by number: use session.loader, with a dataset that has a length")
        batching = self._loop.batching(batch_size, global_batch_size, micro_batch_size, drop_last, shares)
        self._training.identity |= identity.of_data(None, batching, shuffle="False")
        self._loop.made = batches = StreamBatches(self._loop, source, batching, collate_fn)
        if self._loop.checked is not None:
            self._loop.checked.cut(batches)
        return Stream(batches)

    def epochs(self, count: int) -> Iterator[int]:
        """Yield the indices of the epochs still to do, from the current one to ``count - 1``. After the last one the
        trainer has finished.

        Parameters
        ----------
        count : epochs of the entire training, done ones included
        """
        return script_end.closed_at_end(self._loop.epochs(count))

    def iterations(
        self,
        count: int,
        *,
        global_batch_size: int | None = None,
        micro_batch_size: int | None = None,
        shares: str = BALANCED,
    ) -> Iterator[int]:
        """Yield the indices of the steps still to do, up to ``count - 1``, one per turn; epochs advance by themselves.
        After the last step the trainer has finished.

        Within a turn, ``for batch in loader:`` yields the batches of the step, and ``loader.next()`` returns the next
        one of them; then call ``session.step``. A turn whose step is void is repeated with the same number.

        Parameters
        ----------
        count : steps of the entire training, done ones included
        global_batch_size, micro_batch_size : without a loader, for a script that makes its samples itself: the number
            that all ranks draw for a step, of which each draws :attr:`share`, at most ``micro_batch_size`` at once.
            Without these sizes all ranks compute the same, and the gradient of rank 0 counts
        shares : of these ranks, see :meth:`loader`
        """
        if self._loop.made is None:
            batching = self._loop.batching(None, global_batch_size or 1, micro_batch_size, False, shares)
            self._training.identity |= identity.of_data(None, batching, shuffle="by the script")
            self._loop.made = Draws(self._loop, batching)
        elif (global_batch_size, micro_batch_size, shares) != (None, None, BALANCED):
            raise UserError(
                "session.iterations: the loader has the batch size and shares=; pass them to one of the two"
            )
        return script_end.closed_at_end(self._loop.iterations(count))

    def stop(self) -> None:
        """Make this epoch, or the next step in :meth:`iterations`, the last one, on all ranks."""
        self._loop.stop()

    def evaluate(
        self, dataset: Dataset[Any], function: Function, batch_size: int = 256, **options: Any
    ) -> dict[str, float]:
        """Run a validation pass: return the means over ``dataset`` of the values that ``function`` returns, by name.

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
        self._loop.end_void_batch()
        if self._step.is_open:
            raise UserError("call session.evaluate between two steps: after session.step, or outside the loop")
        self._loop.end_round()
        self._loop.check.user()
        began_s = time.monotonic()
        in_step = self._training.sharding.size if self._training.sharding is not None else 1
        if (checked := self._loop.checked) is not None:
            function = functools.wraps(function)(lambda batch, given=function: given(checked.cast(batch)))
        evaluation = Evaluation(self._training.model, dataset, function, batch_size, options, in_step)
        with rng.untouched():  # each rank draws for its own part, or not at all if the others have the result
            means = evaluation.run(self._loop.collectives)
        self._group.rested(time.monotonic() - began_s)
        return means

    def step(self, loss: Number = None, name: str | None = None, *, weight: Number = None) -> bool:
        """Sum the gradients over the group, and step the optimizer and the scheduler: call this once for each batch of
        the loader, where a plain loop calls ``optimizer.step()``.

        Returns whether it stepped: not for a micro-batch before the last, and not if the group broke; then the loader
        yields the same samples again. (A step that the loss scaler skipped counts, because its samples were used.)

        Parameters
        ----------
        loss : mean over the batch, for progress reports
        name : the optimizer to step, if the session has a dict of them: call this for each one that uses the batch;
            without a name all are stepped together
        weight : weight of the batch's gradient (and loss) in the mean over the step, instead of its number of samples;
            for example its number of tokens, if the loss is a mean over tokens. Give it in every step or in none
        """
        stepped = self._step.step(loss, name, weight)
        self._loop.stepped()
        return stepped

    def sum(self, loss: Number = None, name: str | None = None, *, weight: Number = None) -> bool:
        """Put the sums over the group into ``p.grad``, between backward and :meth:`step`, for a script that uses the
        gradients. Returns whether they are there: not for a micro-batch before the last, and not if the group broke.
        Call ``step`` afterwards in any case, without loss and weight.

        Parameters
        ----------
        loss, name, weight : see :meth:`step`
        """
        return self._step.sum(loss, name, weight)

    def clip_grad_norm(self, max_norm: float, *others: object) -> None:
        """Scale the gradients of this step (and optimizer) so that their 2-norm over the group is at most ``max_norm``.

        Replaces torch's function, whose other arguments are refused; call it before :meth:`step`.
        """
        self._step.max_norm = norm_of(max_norm, others)

    def track(self, name: str, stateful: Stateful) -> None:
        """Keep the state of ``stateful`` with the model's, through rescales and in checkpoints: an average of the
        parameters, another model, your own scheduler. Call this before :meth:`epochs`, and before anything that waits
        for the group (:attr:`rank`).

        Parameters
        ----------
        name : its name in checkpoints
        stateful : has ``state_dict`` and ``load_state_dict``, with values that :attr:`state` may hold
        """
        loop, tracked = self._loop, self._training.tracked
        check_tracked(name, stateful, tracked, looping=loop.guard.looping, has_entered=loop.has_entered)
        check_whole(name, stateful)
        tracked[name] = stateful
        if loop.rounds is not None:
            loop.rounds.exchange.renew()
        self._training.identity[f"the tracked object {name}"] = type(stateful).__name__

    def on_restore(self, function: Callable[[], object]) -> None:
        """Call ``function`` whenever a state was taken over (from another rank or a checkpoint) or restored after a
        void step, to update values that the script derives from the model, tracked objects, :attr:`state` or
        :attr:`steps`. (The process is not in a group then.)
        """
        check_callback(function)
        self._training.on_restore.append(function)

    def report(self, **metrics: float) -> None:
        """Show these values, by name, with the trainer's progress; studies compare trials by one of them, and
        ``ReduceLROnPlateau`` gets one (``schedule=``). If ranks report different values, those of rank 0 count.
        """
        values = reported(metrics)
        self._metrics.update(values)
        self._loop.measured.update(values)
        self._training.reports.note(self._training.position.step, values)
        for log in self._step.logs:
            log.report(self._training.position.step, values)

    def log_to(self, kind: str, folder: str | os.PathLike[str]) -> None:
        """Log the loss, the learning rate and reported values, each step once, as one run through all changes of the
        group. Call this before :meth:`epochs` on all ranks; rank 0 writes.

        Parameters
        ----------
        kind : ``tensorboard``
        folder : the run's folder, on a file system that all nodes share
        """
        self._step.logs.append(metric_log(kind, folder))

    def _entered(self) -> Membership:
        """Return the group, after waiting for it."""
        self._expect_group()
        return self._loop.rounds.place() if self._loop.rounds is not None else self._step.member

    def _expect_group(self) -> None:
        if self._training.restoring:
            raise UserError(
                "a function of session.on_restore runs while its process is in no group, so it cannot use session.rank,"
                " session.size or session.evaluate; it may use the models, tracked objects, session.state and"
                " session.steps"
            )


def session(
    model: Models,
    optimizer: Optimizers,
    scheduler: Schedulers | None = None,
    *,
    schedule: str | None = None,
    scaler: Scalers | None = None,
    lr_rule: str | None = None,
    wire_dtype: str | None = None,
    sync: DiLoCo | None = None,
    seed: int = 0,
) -> Session:
    """Make a training loop elastic; see ``docs/elastic/tutorial.md``.

    Under ``pilot submit`` the process is one worker of a trainer; under plain ``python`` the same script runs by
    itself.

    Parameters
    ----------
    model, optimizer, scheduler : as in a plain script; ``session.step`` steps the last two. Pass several models as a
        dict by name. Pass several optimizers as a list to step them together, or as a dict to step each by its name (as
        in a GAN); schedulers take the same form
    schedule : required with a scheduler: whether it advances per ``step``, per ``epoch``, or by ``samples`` (counted in
        steps of one node: with ``batch_size`` on k nodes, k per step); for ``ReduceLROnPlateau`` the name of the
        value that the script reports at each epoch's end (``session.report``)
    scaler : loss scaler for mixed precision, or a dict by optimizer name; the script calls
        ``scaler.scale(loss).backward()``, the session does the rest
    lr_rule : required with ``batch_size``, by which the batch grows with the group: how the learning rate follows,
        ``linear``, ``sqrt`` or ``none``
    wire_dtype : ``bfloat16`` or ``float16``: send float32 gradients between nodes at half the size, rounded before and
        after the sum
    sync : ``pilot.train.DiLoCo(every=...)`` or ``LocalSGD(every=...)``: nodes train by themselves, and exchange their
        parameters once in so many steps (``docs/elastic/seldom.md``); None: gradients are summed in every step
    seed : seed of the sample order, the augmentation and the ranks' random generators

    Raises
    ------
    pilot.core.errors.UserError
        These cannot be trained together, or not on the site's nodes; the message has one line with the change to make.
    """
    if not isinstance(seed, SupportsIndex):
        raise UserError(f"pilot.train.session: seed must be a whole number, got {seed!r}")
    if (run := CheckedRun.of(os.environ)) is not None:
        run.adopt(model, scaler)
    asked = os.environ.get(SYNC) or sync
    settings = None if asked is None else parsed(str(asked))
    if settings is not None and wire_dtype is not None:
        raise UserError("pilot.train.session: with sync= nodes send no gradients: pass wire= to DiLoCo, no wire_dtype=")
    training = Training(model, optimizer, scheduler, schedule, LearningRate(lr_rule), scaler, settings)
    return Session(training, int(seed), wire_dtype)
