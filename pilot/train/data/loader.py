"""A rank's batches of a dataset, from the global cursor on, through all changes of the group. They are loaded by
torch's ``DataLoader``, whose options a script may pass.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sized
from typing import Any, cast

from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
    default_collate,
)

from pilot.core.errors import UserError
from pilot.train.data.order import Drawn, Order, Sequential, shuffled
from pilot.train.data.sampler import Batching, StepShare, count_of
from pilot.train.data.seeded import MicroBatch, MicroBatchLoader, Seeded, WorkerInit, collate
from pilot.train.data.training_loader import Batches, LoopView

_WITHOUT_END = 1 << 62
_SUPPORTED = {"num_workers", "collate_fn", "pin_memory", "pin_memory_device", "timeout", "worker_init_fn"} | {
    "multiprocessing_context",
    "prefetch_factor",
    "persistent_workers",
    "in_order",
}
_INSTEAD = {
    "sampler": "the order of samples follows from the session's seed; to use a part of the data, take"
    " torch.utils.data.Subset; to sample with replacement, replacement=True, num_samples=...",
    "batch_sampler": "the samples of a step follow from batch_size or global_batch_size, on any number of nodes",
    "generator": "the order follows from the seed of pilot.train.session",
}


class _MicroBatches(Sampler[Any]):
    """The indices of a rank's micro-batches, planned ahead as if the group did not change."""

    def __init__(self, loader: DatasetBatches) -> None:
        self._loader = loader
        self.planned: deque[tuple[StepShare, int]] = deque()
        """(share, number in it) of the micro-batches being loaded, in the order of delivery."""

    def __iter__(self) -> Iterator[MicroBatch]:
        epoch, cursor, rank, size, _ = self._loader.loop.where()
        planned: deque[tuple[StepShare, int]] = deque()
        self.planned = planned
        for share in self._loader.shares(cursor, rank, size):
            for number, (start, stop) in enumerate(share.batches):
                planned.append((share, number))
                indices = self._loader.order.indices(epoch, start, stop)
                yield MicroBatch(self._loader.loop.seed, epoch, start, indices)


class DatasetBatches(Batches):
    """The batches of a dataset; the parameters are those of :meth:`pilot.train.session.Session.loader`."""

    def __init__(
        self,
        loop: LoopView,
        dataset: Dataset[Any],
        batching: Batching,
        *,
        shuffle: bool = True,
        replacement: bool = False,
        num_samples: int | None = None,
        options: Mapping[str, Any],
    ) -> None:
        self._samples = length_of(dataset, "session.loader")
        if not self._samples:
            raise UserError("session.loader: the dataset has no samples (its length is 0); check where it is made")
        super().__init__(loop, batching)
        self.dataset = dataset
        self.order = _order(loop.seed, self._samples, shuffle, replacement, num_samples)
        self.length = self.order.length
        self._endless = replacement and num_samples is None
        self._micro_batches = _MicroBatches(self)
        self._repeats_last = False
        self._batches = self._loading(_checked(options))

    def __len__(self) -> int:
        """See :class:`~pilot.train.data.training_loader.Loader`."""
        one_node = 0, self.batching.ranks_per_node
        if self.batching.has_fixed_batches:
            return self.batching.batches(self.length, *one_node)
        batches = self.batching.batches(self.length, *self.part(), self.next_bounds())
        return -(-batches // self.loop.nodes())

    @property
    def look_ahead(self) -> int:  # type: ignore[override]  # it depends on the options
        return self._batches.num_workers * (self._batches.prefetch_factor or 0)

    def ends_with(self, share: StepShare, size: int) -> bool:
        return self.batching.over(share.cursor_end, self.length, size)

    def shares(self, cursor: int, rank: int, size: int) -> Iterator[StepShare]:
        """Return the shares to load from ``cursor`` on if the group does not change, or the epoch's last step again."""
        if not self._repeats_last:
            return self._coming(cursor, rank, size)
        last = self.batching.last_cursor(self.length, size)
        return iter([self.batching.share(last, self.length, rank, size)])

    def _coming(self, cursor: int, rank: int, size: int) -> Iterator[StepShare]:
        if (deal := self.loop.deal()) is not None:
            yield from (self.batching.share(start, stop, rank, size) for start, stop in deal)
            return
        step = self.loop.steps_done()
        if (rehearsal := self.loop.rehearsal()) is not None:
            first = self.batching.share(cursor, self.length, *self.part(), self.next_bounds())
            yield rehearsal.counted(first, rank)
            cursor, step = first.cursor_end, step + 1
        yield from self.batching.shares(cursor, self.length, rank, size, lambda later: self.loop.bounds(step + later))

    def rest_of_epoch(self) -> Iterator[Any]:
        """Yield the batches from the session's position to the end of the epoch.

        A process that joins after an epoch's last step gets that step's batches, which do not count: otherwise the
        script's code after the loop would lack the loop's variables (the last loss, a mean over batches).
        """
        started = False
        while True:
            _, cursor, _, size, _ = self.loop.where()
            if not self.batching.over(cursor, self.length, size):
                for batch in self._as_planned():
                    started = True
                    yield batch
            elif cursor and not started and self.loop.by_epoch():
                started = True
                yield from self._last_step()
            elif self.loop.epoch_is_over():
                return

    def _last_step(self) -> Iterator[Any]:
        self._repeats_last = True
        try:
            for batch in self._batches:
                share, number = self._micro_batches.planned.popleft()
                self.loop.begin_uncounted(share, number)
                self._given = number, 1
                yield batch
                self.loop.end_batch()
        finally:
            self._repeats_last = False

    def _as_planned(self) -> Iterator[Any]:
        """Yield batches until the epoch ends, or until the session's position differs from the plan."""
        self.loop.align()
        if (samples := len(cast(Sized, self.dataset))) != self._samples:
            raise UserError(
                f"the dataset of session.loader had {self._samples} samples when the loader was made and has {samples}"
                " now; its length must not change"
            )
        revision = self.loop.where()[-1]
        for batch in self._batches:
            share, number = self._micro_batches.planned.popleft()
            self.loop.begin(share, number)
            self._given = number, 0
            yield batch
            self.loop.end_batch()
            if self.loop.where()[-1] != revision:
                return

    def draw_without_end(self) -> None:
        """Make an epoch endless if samples are drawn with replacement and without ``num_samples``."""
        if self._endless:
            self.length = _WITHOUT_END

    def _loading(self, options: dict[str, Any]) -> DataLoader[Any]:
        if options.get("num_workers"):
            options["worker_init_fn"] = WorkerInit(options.get("worker_init_fn"))
        seeded = Seeded(self.dataset, collated=options.get("collate_fn") is not None)
        options["collate_fn"] = options.get("collate_fn") or collate
        try:
            return MicroBatchLoader(seeded, batch_sampler=self._micro_batches, **options)
        except (TypeError, ValueError) as error:
            raise UserError(f"session.loader: {error}") from error


def _order(seed: int, samples: int, shuffle: bool, replacement: bool, num_samples: int | None) -> Order:
    if not replacement:
        if num_samples is not None:
            raise UserError(
                "session.loader: num_samples needs replacement=True; otherwise an epoch is every sample once"
            )
        return shuffled(seed, samples) if shuffle else Sequential(samples)
    if not shuffle:
        raise UserError("session.loader: replacement=True cannot be combined with shuffle=False")
    return Drawn(seed, samples, samples if num_samples is None else count_of("num_samples", num_samples))


def length_of(dataset: Dataset[Any], user: str) -> int:
    """Return the number of samples; :class:`UserError` if ``user``, a method, cannot read the dataset by index."""
    if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__len__"):
        raise UserError(f"{user} needs a map-style dataset with a length; session.stream trains on one without")
    if not (hasattr(dataset, "__getitem__") or hasattr(dataset, "__getitems__")):
        raise UserError(
            f"{user} needs a dataset with __getitem__; {type(dataset).__name__} has none (pass the dataset itself, not"
            " a DataLoader)"
        )
    return len(cast(Sized, dataset))


def arguments_of(loader: DataLoader[Any]) -> dict[str, Any]:
    """Return the arguments and options of ``session.loader`` that correspond to ``loader``."""
    length_of(loader.dataset, "session.loader")
    sampler = loader.sampler
    shuffles = type(sampler) is RandomSampler and not sampler.replacement and sampler._num_samples is None
    if loader.batch_size is None or not (shuffles or type(sampler) is SequentialSampler):
        chosen = sampler if loader.batch_size is not None else loader.batch_sampler
        raise UserError(
            f"session.loader chooses the samples itself, so it takes no DataLoader with a"
            f" {type(chosen).__name__}: pass one with batch_size= and shuffle=, or the dataset (for a part of it"
            " torch.utils.data.Subset, for draws replacement=True)"
        )
    options = {name: value for name in (*_SUPPORTED, "generator") if (value := getattr(loader, name, None))}
    if options.get("collate_fn") is default_collate:
        del options["collate_fn"]
    return options | {"batch_size": loader.batch_size, "drop_last": loader.drop_last, "shuffle": shuffles}


def _checked(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options for torch's ``DataLoader``; :class:`UserError` if one is invalid, or chooses samples."""
    for name, instead in _INSTEAD.items():
        if options.get(name) is not None:
            raise UserError(f"session.loader takes no {name}: {instead}")
    if unknown := sorted(options.keys() - _SUPPORTED - _INSTEAD.keys()):
        raise UserError(f"session.loader and torch's DataLoader have no option {unknown[0]}")
    if not options.get("in_order", True):
        raise UserError(
            "session.loader takes no in_order=False: samples would be counted for the wrong batch; remove it"
        )
    workers = options.get("num_workers", 0)
    if not (isinstance(workers, int) and workers >= 0):
        raise UserError(
            f"session.loader: num_workers is the number of loader processes of each rank, got {workers!r}: pass a"
            " number, such as the cores of a node divided by its ranks, minus one"
        )
    if options.get("timeout") and not options.get("num_workers"):
        raise UserError("session.loader: timeout is how long to wait for workers, so it needs num_workers")
    if options.get("prefetch_factor") is not None and options["prefetch_factor"] < 1:
        raise UserError(f"session.loader: prefetch_factor must be at least 1, got {options['prefetch_factor']}")
    return {name: value for name, value in options.items() if name in _SUPPORTED}
