"""What a script iterates over, and the interface between the batches behind it and the session."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NoReturn, Protocol

from torch.utils.data import Dataset

from pilot.core.errors import UserError
from pilot.train.data.rehearsal import Rehearsal
from pilot.train.data.sampler import Batching, StepShare

Rest = Callable[[], Iterator[Any]]
"""This rank's batches from the session's position to the end of the epoch."""


class Course(Protocol):
    """What a loader needs from the session."""

    seed: int

    def where(self) -> tuple[int, int, int, int, int]:
        """(epoch, cursor, rank, size, revision) in the group. The revision changes if a step was void or the group
        changed.
        """

    def rehearsal(self) -> Rehearsal | None:
        """Who rehearses in the next step; None: nobody."""

    def steps_done(self) -> int:
        """How many steps of this epoch are done."""

    def align(self) -> None:
        """Before a step: wait until all ranks are about to do it; this may change the position."""

    def epoch_is_over(self) -> bool:
        """There are no more batches in this epoch. Returns False if something has changed, so that the loader must
        check again."""

    def epoch_has(self, samples: int) -> None:
        """Report how many samples an epoch has, as soon as that is known."""

    def begin(self, share: StepShare, batch: int) -> None:
        """The script gets micro-batch ``batch`` of ``share`` next; raises an error if it skipped a ``session.step``."""

    def by_epoch(self) -> bool:
        """Whether the script loops over epochs."""

    def look_back(self, share: StepShare, batch: int) -> None:
        """The script gets micro-batch ``batch`` of ``share``, a step that was done before this process joined; it does
        not count.
        """

    def came_back(self) -> None:
        """The script is done with its batch, and asks for the next one."""

    def batches(self, rest: Rest) -> Iterator[Any]:
        """For a loop over the loader: the batches of the epoch, or of one step when counting iterations."""

    def next_batch(self) -> Any:
        """A single batch, when counting iterations."""


class Uncopied:
    """A session, or its loader: refuses to be copied or pickled. ``_known_as``: what users call it."""

    _known_as: str

    def __reduce__(self) -> NoReturn:
        raise UserError(
            f"{self._known_as} cannot be copied or pickled, nor can an object that has it (copy.deepcopy(trainer), a"
            " dataset that is sent to workers): copy model.state_dict() instead, and give others only what they need"
        )


class Batches:
    """This rank's batches, step by step. ``cast``: what the script gets of each batch (``pilot check``).

    Parameters
    ----------
    course : the session
    batching : how many samples a step takes
    """

    def __init__(self, course: Course, batching: Batching) -> None:
        self.course = course
        self.batching = batching
        self.cast: Callable[[Any], Any] | None = None
        self._given = 0, 0

    def rest_of_epoch(self) -> Iterator[Any]:
        """See :data:`Rest`."""
        raise NotImplementedError

    def rest(self) -> Iterator[Any]:
        """The same, as the script gets it."""
        batches = self.rest_of_epoch()
        cast = self.cast
        return batches if cast is None else (cast(batch) for batch in batches)

    def ends_with(self, share: StepShare, size: int) -> bool:  # noqa: ARG002  # those of a dataset
        """Whether the epoch ends with ``share`` of a step in a group of ``size``; False if that is not known ahead."""
        return False

    def draw_without_end(self) -> None:
        """The script counts iterations, so epochs have no meaning: draw without end."""

    def number(self) -> int:
        """Of the batch that the script gets: as if the epoch had all been done by the group as it is now."""
        batch, back = self._given
        part, parts = self.part()
        whole_step = self.batching.share(0, self.batching.full(parts), part, parts)
        return (self.course.steps_done() - back) * len(whole_step.batches) + batch

    def part(self) -> tuple[int, int]:
        """Which of how many parts of the next step's samples this rank gets."""
        _, _, rank, size, _ = self.course.where()
        rehearsal = self.course.rehearsal()
        return (rank, size) if rehearsal is None else (rehearsal.part(rank), rehearsal.parts)

    def _step(self, share: StepShare, batch_of: Callable[[int, int], Any]) -> Iterator[Any]:
        """The batches of a step, whose samples [start, stop) ``batch_of`` gives, until the position changes."""
        rehearsal = self.course.rehearsal()
        _, _, rank, _, revision = self.course.where()
        counted = share if rehearsal is None else rehearsal.counted(share, rank)
        for number, (start, stop) in enumerate(share.batches):
            self.course.begin(counted, number)
            self._give(number)
            yield batch_of(start, stop)
            self.course.came_back()
            if self.course.where()[-1] != revision:
                return

    def _give(self, batch: int, *, back: int = 0) -> None:
        """The script gets micro-batch ``batch`` of the next step, or of the one that lies ``back``."""
        self._given = batch, back


class Draws(Batches):
    """Of a script that makes its samples itself, in ``session.iterations``: how many this rank is to draw."""

    def rest_of_epoch(self) -> Iterator[int]:
        """See :class:`Batches`: without end."""
        while True:
            self.course.align()
            _, cursor, *_ = self.course.where()
            part, parts = self.part()
            share = self.batching.share(cursor, cursor + self.batching.full(parts), part, parts)
            yield from self._step(share, lambda start, stop: stop - start)


class Stream(Uncopied):
    """What ``session.stream`` gives: iterate over it once per epoch, like over a ``DataLoader``."""

    _known_as = "a session's loader"

    def __init__(self, batches: Batches) -> None:
        self._batches = batches

    def __iter__(self) -> Iterator[Any]:
        """In ``session.epochs`` the rest of the epoch, in ``session.iterations`` the batches of this step.

        After a void step its samples are repeated, divided over the new group. A worker that was parked while the
        others moved on to another epoch continues in that one: what a script does after an epoch is done once per
        epoch.
        """
        return self._batches.course.batches(self._batches.rest)

    def enumerate(self, start: int = 0) -> Iterator[tuple[int, Any]]:
        """In ``session.epochs``: each batch with its number in the whole epoch, plus ``start``: also on a node that
        joins in the middle, or in a run that resumes there, and after a void step. Python's own ``enumerate`` counts
        what this process gets.
        """
        if not self._batches.course.by_epoch():
            raise UserError(
                "loader.enumerate() is for session.epochs; session.iterations numbers the steps itself, and"
                " enumerate(loader) the batches of one"
            )
        return ((start + self._batches.number(), batch) for batch in iter(self))

    def next(self) -> Any:
        """In ``session.iterations``: the next batch of this step."""
        return self._batches.course.next_batch()


class Loader(Stream):
    """What ``session.loader`` gives: iterate over it once per epoch, like over a ``DataLoader``."""

    def __init__(self, batches: Batches, dataset: Dataset[Any]) -> None:
        super().__init__(batches)
        self.dataset = dataset

    @property
    def batch_size(self) -> int:
        """Samples in this rank's largest batch, at the group's current size."""
        batching = self._batches.batching
        part, parts = self._batches.part()
        share = batching.share(0, batching.full(parts), part, parts)
        return max(stop - start for start, stop in share.batches)

    def __len__(self) -> int:
        """This rank's batches in a whole epoch, at the group's current size. Waits for the group only if the number
        depends on it: a schedule is made from it before the loop.
        """
        return len(self._batches)  # type: ignore[arg-type]  # those of a dataset have a length
