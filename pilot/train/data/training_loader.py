"""The loaders that a script iterates over, and the interface between their batches and the session's loop."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NoReturn, Protocol

from torch.utils.data import Dataset

from pilot.core.errors import UserError
from pilot.train.data.deals import Range
from pilot.train.data.rehearsal import Rehearsal
from pilot.train.data.sampler import Batching, Bounds, StepShare

Rest = Callable[[], Iterator[Any]]
"""Yields a rank's batches from the session's position to the end of the epoch."""


class LoopView(Protocol):
    """The session's loop as its loader sees it."""

    seed: int

    def where(self) -> tuple[int, int, int, int, int]:
        """Return (epoch, cursor, rank, size, revision) of this rank; in the middle of a step, those of its beginning.
        The cursor is 0 if samples before it were put back. The revision changes when a step is void or the group does.
        """

    def rehearsal(self) -> Rehearsal | None:
        """Return the rehearsal in the next step, if there is one."""

    def steps_done(self) -> int:
        """Return the number of steps done in this epoch."""

    def bounds(self, step: int) -> Bounds:
        """Return the bounds of the ranks' shares in step ``step`` of this epoch, which is not done yet."""

    def deal(self) -> list[Range] | None:
        """Return the batches that this node has yet to use in a round; None: all ranks take part in each step."""

    def nodes(self) -> int:
        """Return how many nodes train by themselves, each on a part of an epoch; 1: all do each step together."""

    def align(self) -> None:
        """Wait until all ranks are about to do the next step; this may change the position."""

    def epoch_is_over(self) -> bool:
        """End the epoch; return False if the position has changed, so that the loader must check again."""

    def epoch_has(self, samples: int) -> None:
        """Report the number of samples in an epoch, as soon as it is known."""

    def begin(self, share: StepShare, batch: int) -> None:
        """Begin micro-batch ``batch`` of ``share``; :class:`UserError` if the script skipped a ``session.step``."""

    def by_epoch(self) -> bool:
        """Return whether the script loops over epochs."""

    def begin_uncounted(self, share: StepShare, batch: int) -> None:
        """Begin micro-batch ``batch`` of a step that was done before this process joined, and so does not count."""

    def end_batch(self) -> None:
        """End the batch: the script asks for the next one."""

    def batches(self, rest: Rest) -> Iterator[Any]:
        """Return the batches of a pass over the loader: of the epoch, or of one step in ``session.iterations``."""

    def next_batch(self) -> Any:
        """Return a single batch, in ``session.iterations``."""


class Uncopied:
    """A base class of objects that cannot be copied or pickled. ``_known_as``: the object's name for users."""

    _known_as: str

    def __reduce__(self) -> NoReturn:
        raise UserError(
            f"{self._known_as} cannot be copied or pickled, nor can an object that has it (copy.deepcopy(trainer), a"
            " dataset that is sent to workers): copy model.state_dict() instead, and give others only what they need"
        )


class Batches:
    """A rank's batches, step by step. ``cast`` converts each batch for the script (``pilot check``).

    Parameters
    ----------
    loop : the session's loop
    batching : the number of samples in a step
    """

    look_ahead = 0
    """How many batches are loaded before the script asks for them."""

    def __init__(self, loop: LoopView, batching: Batching) -> None:
        self.loop = loop
        self.batching = batching
        self.cast: Callable[[Any], Any] | None = None
        self._given = 0, 0  # (micro-batch, how many steps its step lies back) of the script's batch

    def rest_of_epoch(self) -> Iterator[Any]:
        """Yield this rank's batches from the session's position to the end of the epoch."""
        raise NotImplementedError

    def rest(self) -> Iterator[Any]:
        """Return the batches of :meth:`rest_of_epoch`, converted by ``cast``."""
        batches = self.rest_of_epoch()
        cast = self.cast
        return batches if cast is None else (cast(batch) for batch in batches)

    def ends_with(self, share: StepShare, size: int) -> bool:  # noqa: ARG002  # for overrides
        """Return whether the epoch of a group of ``size`` ends with ``share``; False if that is not known ahead."""
        return False

    def draw_without_end(self) -> None:
        """Make epochs endless where the order allows it: the script counts iterations."""

    def number(self) -> int:
        """Return the number in the epoch of the script's batch, as if the present group had done the entire epoch."""
        batch, back = self._given
        return (self.loop.steps_done() - back) * len(self.full_step().batches) + batch

    def full_step(self) -> StepShare:
        """Return this rank's share of a full step, as the next one is divided."""
        part, parts = self.part()
        return self.batching.share(0, self.batching.full(parts), part, parts, self.next_bounds())

    def next_bounds(self) -> Bounds:
        """Return the bounds of the ranks' shares in the next step."""
        return self.loop.bounds(self.loop.steps_done())

    def part(self) -> tuple[int, int]:
        """Return (number, count): the part of the next step's samples that this rank gets."""
        _, _, rank, size, _ = self.loop.where()
        rehearsal = self.loop.rehearsal()
        return (rank, size) if rehearsal is None else (rehearsal.part(rank), rehearsal.parts)

    def _step(self, share: StepShare, batch_of: Callable[[int, int], Any]) -> Iterator[Any]:
        """Yield the batches of a step until the position changes; ``batch_of(start, stop)`` makes each."""
        rehearsal = self.loop.rehearsal()
        _, _, rank, _, revision = self.loop.where()
        counted = share if rehearsal is None else rehearsal.counted(share, rank)
        for number, (start, stop) in enumerate(share.batches):
            self.loop.begin(counted, number)
            self._given = number, 0
            yield batch_of(start, stop)
            self.loop.end_batch()
            if self.loop.where()[-1] != revision:
                return


class Draws(Batches):
    """The numbers of samples that a rank is to draw, for a script that makes its samples itself."""

    def rest_of_epoch(self) -> Iterator[int]:
        """Yield the number of samples for each micro-batch, without end."""
        while True:
            self.loop.align()
            _, cursor, *_ = self.loop.where()
            part, parts = self.part()
            share = self.batching.share(cursor, cursor + self.batching.full(parts), part, parts, self.next_bounds())
            yield from self._step(share, lambda start, stop: stop - start)


class Stream(Uncopied):
    """The loader that ``session.stream`` returns: iterate over it once per epoch, like over a ``DataLoader``."""

    _known_as = "a session's loader"

    def __init__(self, batches: Batches) -> None:
        self._batches = batches

    def __iter__(self) -> Iterator[Any]:
        """Return the rest of the epoch in ``session.epochs``, and the batches of this step in ``session.iterations``.

        After a void step its samples are repeated, divided over the new group. A worker that was parked while the
        others went on to another epoch continues in that one.
        """
        return self._batches.loop.batches(self._batches.rest)

    def enumerate(self, start: int = 0) -> Iterator[tuple[int, Any]]:
        """Yield each batch of ``session.epochs`` with its number in the epoch, plus ``start``. Unlike Python's
        ``enumerate``, which counts the batches of this process, it is right on a node that joins within the epoch, in a
        run that resumes there, and after a void step.
        """
        if not self._batches.loop.by_epoch():
            raise UserError(
                "loader.enumerate() is for session.epochs; session.iterations numbers the steps itself, and"
                " enumerate(loader) the batches of one"
            )
        return ((start + self._batches.number(), batch) for batch in iter(self))

    def next(self) -> Any:
        """Return the next batch of this step, in ``session.iterations``."""
        return self._batches.loop.next_batch()


class Loader(Stream):
    """The loader that ``session.loader`` returns: iterate over it once per epoch, like over a ``DataLoader``."""

    def __init__(self, batches: Batches, dataset: Dataset[Any]) -> None:
        super().__init__(batches)
        self.dataset = dataset

    @property
    def batch_size(self) -> int:
        """The number of samples in this rank's largest batch of the next step."""
        return max(stop - start for start, stop in self._batches.full_step().batches)

    def __len__(self) -> int:
        """Return the number of this rank's batches in an epoch, at the group's current size. It waits for the group
        only if the number depends on it, because scripts make a schedule from it before the loop.
        """
        return len(self._batches)  # type: ignore[arg-type]  # batches of a dataset have a length
