"""The interface between a training loader and the session."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol

from pilot.train.sampler import Batching, StepShare

Rest = Callable[[], Iterator[Any]]
"""The batches of this rank from where the session is to the epoch's end."""


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
        """The script gets micro-batch ``batch`` of ``share`` next; raises if it skipped a ``session.step``."""

    def by_epoch(self) -> bool:
        """Whether the script loops over epochs."""

    def look_back(self, share: StepShare, batch: int) -> None:
        """The script gets micro-batch ``batch`` of ``share``, a step that was done before this process came: for its
        eyes alone, nothing of it counts.
        """

    def came_back(self) -> None:
        """The script is done with its batch, and comes for the next one."""

    def batches(self, rest: Rest) -> Iterator[Any]:
        """For a loop over the loader: those of the epoch, or of one step in a loop by iteration."""

    def next_batch(self, rest: Rest) -> Any:
        """One, in a loop by iteration."""


class TrainingLoader:
    """What a script iterates over.

    Parameters
    ----------
    course : the session
    batching : how many samples a step takes
    """

    def __init__(self, course: Course, batching: Batching) -> None:
        self.course = course
        self.batching = batching

    def __iter__(self) -> Iterator[Any]:
        """In ``session.epochs`` the rest of the epoch, in ``session.iterations`` the batches of this step.

        After a void step its samples come again, divided over the group as it is then. A worker that was parked while
        the others went on to another epoch goes on in that one: what a script does after an epoch, it does once per
        epoch.
        """
        return self.course.batches(self.rest_of_epoch)

    def next(self) -> Any:
        """In ``session.iterations``: the next batch of this step."""
        return self.course.next_batch(self.rest_of_epoch)

    def rest_of_epoch(self) -> Iterator[Any]:
        """See :data:`Rest`."""
        raise NotImplementedError

    def draw_without_end(self) -> None:
        """The script counts iterations: where an epoch has no meaning there shall be none."""
