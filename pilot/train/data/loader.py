"""This rank's batches of a dataset from the global cursor on, whatever changes in the group; and what is taken of
torch's ``DataLoader``: its options, or one that exists.
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
from pilot.train.data.seeded import OwnDataset, Piece, PieceLoader, Seeded, collate
from pilot.train.data.training_loader import Batches, Course

_WITHOUT_END = 1 << 62
_TAKEN = frozenset(
    {
        "num_workers",
        "collate_fn",
        "pin_memory",
        "pin_memory_device",
        "timeout",
        "worker_init_fn",
        "multiprocessing_context",
        "prefetch_factor",
        "persistent_workers",
        "in_order",
    }
)
_INSTEAD = {
    "sampler": "the order of samples follows from the session's seed; to use a part of the data, take"
    " torch.utils.data.Subset; to sample with replacement, replacement=True, num_samples=...",
    "batch_sampler": "the samples of a step follow from batch_size or global_batch_size, on any number of nodes",
    "generator": "the order follows from the seed of pilot.train.session",
}


class _Pieces(Sampler[Any]):
    """This rank's micro-batches, planned ahead on the assumption that the group does not change."""

    def __init__(self, loader: DatasetBatches) -> None:
        self._loader = loader
        self.planned: deque[tuple[StepShare, int]] = deque()
        """(share, number of the micro-batch) of what is being loaded, in the order of delivery."""

    def __iter__(self) -> Iterator[Piece]:
        epoch, cursor, rank, size, _ = self._loader.course.where()
        planned: deque[tuple[StepShare, int]] = deque()
        self.planned = planned
        for share in self._loader.shares(cursor, rank, size):
            for number, (start, stop) in enumerate(share.batches):
                planned.append((share, number))
                yield self._loader.piece(epoch, start, stop)


class DatasetBatches(Batches):
    """See the module; the parameters are those of :meth:`pilot.train.session.Session.loader`."""

    def __init__(
        self,
        course: Course,
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
            raise UserError("session.loader: the dataset has no samples (its length is 0): see what it was made from")
        super().__init__(course, batching)
        self.dataset = dataset
        self.order = _order(course.seed, self._samples, shuffle, replacement, num_samples)
        self.length = self.order.length
        self._endless = replacement and num_samples is None
        self._pieces = _Pieces(self)
        self._looks_back = False
        self._batches = self._loading(_checked(options))

    def __len__(self) -> int:
        """See :class:`~pilot.train.data.training_loader.Loader`."""
        one_node = 0, self.batching.ranks_per_node
        return self.batching.batches(self.length, *(one_node if self.batching.has_fixed_batches else self.part()))

    def piece(self, epoch: int, start: int, stop: int) -> Piece:
        """The samples at positions [start, stop) of an epoch."""
        return Piece(self.course.seed, epoch, start, self.order.indices(epoch, start, stop))

    def ends_with(self, share: StepShare, size: int) -> bool:
        return self.batching.over(share.cursor_end, self.length, size)

    def shares(self, cursor: int, rank: int, size: int) -> Iterator[StepShare]:
        """What to load from ``cursor`` on, if the group does not change; or an epoch's last step once more."""
        if not self._looks_back:
            return self._coming(cursor, rank, size)
        last = self.batching.last_cursor(self.length, size)
        return iter([self.batching.share(last, self.length, rank, size)])

    def _coming(self, cursor: int, rank: int, size: int) -> Iterator[StepShare]:
        if (rehearsal := self.course.rehearsal()) is not None:
            first = self.batching.share(cursor, self.length, *self.part())
            yield rehearsal.counted(first, rank)
            cursor = first.cursor_end
        yield from self.batching.shares(cursor, self.length, rank, size)

    def rest_of_epoch(self) -> Iterator[Any]:
        """See :class:`~pilot.train.data.training_loader.Batches`. A process that joins after an epoch's last
        step gets that step's batches, which do not count: otherwise the script's code after the loop would fail for
        lack of the loop's variables (the last loss, a mean over batches).
        """
        seen = False
        while True:
            _, cursor, _, size, _ = self.course.where()
            if not self.batching.over(cursor, self.length, size):
                for batch in self._as_planned():
                    seen = True
                    yield batch
            elif cursor and not seen and self.course.by_epoch():
                seen = True
                yield from self._last_step()
            elif self.course.epoch_is_over():
                return

    def _last_step(self) -> Iterator[Any]:
        self._looks_back = True
        try:
            for batch in self._batches:
                share, number = self._pieces.planned.popleft()
                self.course.look_back(share, number)
                self._give(number, back=1)
                yield batch
                self.course.came_back()
        finally:
            self._looks_back = False

    def _as_planned(self) -> Iterator[Any]:
        """Batches until the epoch ends, or until the session's position differs from the plan."""
        self.course.align()
        if (samples := len(cast(Sized, self.dataset))) != self._samples:
            raise UserError(
                f"the dataset of session.loader had {self._samples} samples when the loader was made and has {samples}"
                " now; its length must not change"
            )
        revision = self.course.where()[-1]
        for batch in self._batches:
            share, number = self._pieces.planned.popleft()
            self.course.begin(share, number)
            self._give(number)
            yield batch
            self.course.came_back()
            if self.course.where()[-1] != revision:
                return

    def draw_without_end(self) -> None:
        """See :class:`~pilot.train.data.training_loader.Batches`: with replacement, without a number."""
        if self._endless:
            self.length = _WITHOUT_END

    def _loading(self, options: dict[str, Any]) -> DataLoader[Any]:
        if options.get("num_workers"):
            options["worker_init_fn"] = OwnDataset(options.get("worker_init_fn"))
        seeded = Seeded(self.dataset, collated=options.get("collate_fn") is not None)
        options["collate_fn"] = options.get("collate_fn") or collate
        try:
            return PieceLoader(seeded, batch_sampler=self._pieces, **options)
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
    """Its samples; :class:`UserError` if ``user``, a method of the session, cannot read it by index."""
    if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__len__"):
        raise UserError(f"{user} needs a map-style dataset with a length; session.stream trains on one without")
    if not (hasattr(dataset, "__getitem__") or hasattr(dataset, "__getitems__")):
        raise UserError(
            f"{user} needs a dataset with __getitem__; {type(dataset).__name__} has none (give the dataset itself, not"
            " a DataLoader)"
        )
    return len(cast(Sized, dataset))


def arguments_of(loader: DataLoader[Any]) -> dict[str, Any]:
    """What ``session.loader`` takes of ``loader``, by the names of its own arguments and options."""
    length_of(loader.dataset, "session.loader")
    sampler = loader.sampler
    shuffles = type(sampler) is RandomSampler and not sampler.replacement and sampler._num_samples is None
    if loader.batch_size is None or not (shuffles or type(sampler) is SequentialSampler):
        chosen = sampler if loader.batch_size is not None else loader.batch_sampler
        raise UserError(
            f"session.loader decides itself which samples come, so it takes no DataLoader with a"
            f" {type(chosen).__name__}: give it one with batch_size= and shuffle=, or the dataset"
            " (a part of it is a torch.utils.data.Subset; draws are replacement=True)"
        )
    options = {name: value for name in (*_TAKEN, "generator") if (value := getattr(loader, name, None))}
    if options.get("collate_fn") is default_collate:
        del options["collate_fn"]
    return options | {"batch_size": loader.batch_size, "drop_last": loader.drop_last, "shuffle": shuffles}


def _checked(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options for torch's ``DataLoader``. Raises an error if one is invalid, or would change which samples ranks
    get."""
    for name, instead in _INSTEAD.items():
        if options.get(name) is not None:
            raise UserError(f"session.loader takes no {name}: {instead}")
    if unknown := sorted(options.keys() - _TAKEN - _INSTEAD.keys()):
        raise UserError(f"session.loader and torch's DataLoader have no option {unknown[0]}")
    if not options.get("in_order", True):
        raise UserError(
            "session.loader takes no in_order=False: samples would be counted for the wrong batch; remove it"
        )
    workers = options.get("num_workers", 0)
    if not (isinstance(workers, int) and workers >= 0):
        raise UserError(
            f"session.loader: num_workers is how many loader processes each rank has, got {workers!r}: pass a number,"
            " such as the cores of a node divided by its ranks, minus one"
        )
    if options.get("timeout") and not options.get("num_workers"):
        raise UserError("session.loader: timeout is how long to wait for workers, so it needs num_workers")
    if options.get("prefetch_factor") is not None and options["prefetch_factor"] < 1:
        raise UserError(f"session.loader: prefetch_factor must be at least 1, got {options['prefetch_factor']}")
    return {name: value for name, value in options.items() if name in _TAKEN}
