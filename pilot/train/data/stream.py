"""A rank's batches of a stream: samples that arrive one after the other, in an order that every rank can read.

Each rank reads all samples in order and keeps only its share of the current step. After a void step, or after taking
over another rank's state, it reads again from the cursor on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

from torch.utils.data import DataLoader, default_collate

from pilot.core.errors import UserError
from pilot.train.data import rng
from pilot.train.data.sampler import Batching, Bounds, mix
from pilot.train.data.training_loader import Batches, LoopView

_Samples = dict[int, Any]
_END = object()


class StreamBatches(Batches):
    """The batches of a stream; the parameters are those of :meth:`pilot.train.session.Session.stream`."""

    def __init__(
        self,
        loop: LoopView,
        source: Iterable[Any],
        batching: Batching,
        collate_fn: Callable[[list[Any]], Any] = default_collate,
    ) -> None:
        if _once(source):
            raise UserError(
                "session.stream: the source can be read only once; pass an object whose __iter__ starts again"
            )
        if isinstance(source, DataLoader) and source.batch_sampler is not None:
            raise UserError(
                "session.stream: the source is a DataLoader that makes batches, and the session makes them of single"
                " samples: pass DataLoader(dataset, batch_size=None), and the batch size to session.stream"
            )
        super().__init__(loop, batching)
        self.source = source
        self.collate_fn = collate_fn
        self._samples: Iterator[Any] = iter(())
        self._reads: tuple[int, int] | None = None

    def rest_of_epoch(self) -> Iterator[Any]:
        while True:
            epoch, cursor, rank, size, _ = self.loop.where()
            rehearsal = self.loop.rehearsal()
            part, parts = self.part()
            bounds = self.next_bounds()
            end, samples = self._read(epoch, cursor, part, parts, bounds)
            if not self.batching.over(cursor, end, parts):
                self.loop.align()
                here = *self.loop.where()[:4], self.next_bounds()
                if here == (epoch, cursor, rank, size, bounds) and self.loop.rehearsal() is rehearsal:
                    share = self.batching.share(cursor, end, part, parts, bounds)
                    yield from self._step(share, partial(self._collated, samples))
            elif self.loop.epoch_is_over():
                return

    def _collated(self, samples: _Samples, start: int, stop: int) -> Any:
        return self.collate_fn([samples[position] for position in range(start, stop)])

    def _read(self, epoch: int, cursor: int, rank: int, size: int, bounds: Bounds) -> tuple[int, _Samples]:
        """Read the step at ``cursor``: return its end, and the samples that this rank may need, by position."""
        if self._reads != (epoch, cursor):
            self._open(epoch, cursor)
        before, after, filler = self._wanted(rank, size, bounds)
        samples: _Samples = {}
        end = cursor
        while end < cursor + self.batching.full(size):
            sample = self._next(epoch, end)
            if sample is _END:
                self.loop.epoch_has(end)
                break
            place = end - cursor
            if before <= place < after or place < filler:
                samples[end] = sample
            end += 1
        self._reads = (epoch, end)
        return end, samples

    def _wanted(self, rank: int, size: int, bounds: Bounds) -> tuple[int, int, int]:
        """Return the part of a full step that this rank reads, as [before, after), and the end of [0, filler)."""
        one, before, after = (self.batching.quota_before(r, size, bounds) for r in (1, rank, rank + 1))
        return before, after, min(one, self.batching.micro or one)

    def _open(self, epoch: int, cursor: int) -> None:
        if hasattr(self.source, "set_epoch"):
            self.source.set_epoch(epoch)
        if hasattr(self.source, "from_cursor"):
            self._samples = iter(self.source.from_cursor(cursor))
            return
        self._samples = iter(self.source)
        for position in range(cursor):
            self._next(epoch, position)

    def _next(self, epoch: int, position: int) -> Any:
        """Read the next sample. The generators are seeded also for a skipped one, because the source may draw."""
        rng.seed_all(mix(self.loop.seed, epoch, position))
        return next(self._samples, _END)


def _once(source: Iterable[Any]) -> bool:
    """Return whether ``source`` can be read only once."""
    try:
        return iter(source) is source
    except TypeError as error:
        raise UserError(f"session.stream cannot iterate over its source: {error}") from None
