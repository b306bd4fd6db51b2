"""The training loader: batches of this rank from the global cursor on, whatever happens to the group."""

from __future__ import annotations

from collections.abc import Iterator, Sized
from typing import Any, Protocol, cast

from torch.utils.data import DataLoader, Dataset, Sampler

from pilot.core.errors import UserError
from pilot.train import rng
from pilot.train.sampler import Batching, StepShare, mix, permutation

_Key = tuple[int, int]
"""(seed of the sample, its index)."""


class Course(Protocol):
    """What the loader needs of the session."""

    seed: int

    def where(self) -> tuple[int, int, int, int, int]:
        """(epoch, cursor, rank, size, revision), in a group. The revision changes when a step is void or the group
        changed.
        """

    def align(self) -> None:
        """Before a step: wait until all ranks are about to do it; this may change where they are."""

    def epoch_is_over(self) -> bool:
        """There are no more batches in this epoch. False: look again, there was a change."""

    def epoch_has(self, samples: int) -> None:
        """How many samples an epoch has, as soon as that is known."""

    def begin(self, share: StepShare, batch: int) -> None:
        """The script gets micro-batch ``batch`` of ``share`` next; raises where it left out a ``session.step``."""


class _Seeded(Dataset[Any]):
    """A dataset whose random augmentation depends on (seed, epoch, sample) alone, not on who loads it or when."""

    def __init__(self, dataset: Dataset[Any]) -> None:
        self._dataset = dataset

    def __getitem__(self, key: _Key) -> Any:
        seed, index = key
        rng.seed_all(seed)
        return self._dataset[index]


class _Keys(Sampler[list[_Key]]):
    """The keys of this rank's micro-batches, planned ahead as if the group stayed as it is."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def __iter__(self) -> Iterator[list[_Key]]:
        loader, (epoch, *_) = self._loader, self._loader.course.where()
        seed = loader.course.seed
        order = permutation(seed, epoch, loader.length, shuffle=loader.shuffle)
        for share, batch in loader.planned():
            indices = order[slice(*share.batches[batch])].tolist()
            yield [(mix(seed, epoch, index), index) for index in indices]


class Loader:
    """Iterate over it once per epoch, as over a ``DataLoader``.

    Parameters
    ----------
    course : the session
    dataset : map-style, with a length
    batching : how many samples a step takes
    shuffle : a new order in each epoch, from (seed, epoch)
    options : of torch's ``DataLoader`` (``num_workers``, ``collate_fn``, ``pin_memory``, ...)
    """

    def __init__(
        self, course: Course, dataset: Dataset[Any], batching: Batching, *, shuffle: bool, options: dict[str, Any]
    ) -> None:
        self.course = course
        self.batching = batching
        if not hasattr(dataset, "__len__"):
            raise UserError("session.loader needs a dataset with a length; session.stream takes one without")
        self.length = len(cast(Sized, dataset))
        self.shuffle = shuffle
        if options.get("num_workers"):
            options.setdefault("persistent_workers", True)  # they live through a new plan
        self._batches: DataLoader[Any] = DataLoader(_Seeded(dataset), batch_sampler=_Keys(self), **options)

    def planned(self) -> Iterator[tuple[StepShare, int]]:
        """(share, number of the micro-batch) from the session's position to the epoch's end."""
        _, cursor, rank, size, _ = self.course.where()
        for share in self.batching.shares(cursor, self.length, rank, size):
            for batch in range(len(share.batches)):
                yield share, batch

    def __len__(self) -> int:
        """Batches of this rank in a whole epoch at the group's present size."""
        _, _, rank, size, _ = self.course.where()
        return sum(len(share.batches) for share in self.batching.shares(0, self.length, rank, size))

    def __iter__(self) -> Iterator[Any]:
        """The rest of the current epoch.

        After a void step its samples come again, divided over the group as it is then. A worker that was parked while
        the others went on to another epoch goes on in that one: what a script does after an epoch, it does once per
        epoch.
        """
        while True:
            _, cursor, _, size, _ = self.course.where()
            if not self.batching.over(cursor, self.length, size):
                yield from self._as_planned()
            elif self.course.epoch_is_over():
                return

    def _as_planned(self) -> Iterator[Any]:
        """Batches until the epoch's end, or until the session is not where the plan says."""
        self.course.align()
        revision = self.course.where()[-1]
        for (share, number), batch in zip(self.planned(), self._batches, strict=True):
            self.course.begin(share, number)
            yield batch
            if self.course.where()[-1] != revision:
                return
