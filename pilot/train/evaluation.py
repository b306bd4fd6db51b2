"""A validation pass over all ranks, in rounds: the group may change after each round, and no work is repeated."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from typing import Any, SupportsFloat

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from pilot.core.errors import UserError
from pilot.train.data.loader import length_of
from pilot.train.ranks.collectives import Collectives
from pilot.train.state.progress import Sums, total
from pilot.train.state.session_checks import number
from pilot.train.state.sharding import reshard

ROUND_BATCHES = 8
"""The number of batches per rank and round, between two chances to rescale or pause: a few seconds at most."""

Function = Callable[[Any], Mapping[str, SupportsFloat]]
_SAMPLES = "samples of the pass"


class Evaluation:
    """One validation pass; see :meth:`pilot.train.session.Session.evaluate`. Each ``in_step`` consecutive ranks compute
    in step, and so run the same number of batches.
    """

    def __init__(
        self,
        model: nn.Module,
        dataset: Dataset[Any],
        function: Function,
        batch_size: int,
        options: dict[str, Any],
        in_step: int = 1,
    ) -> None:
        self._length = length_of(dataset, "session.evaluate")
        if batch_size < 1 or not self._length:
            raise UserError(f"session.evaluate: {self._length} samples in batches of {batch_size} cannot be evaluated")
        self._model, self._dataset, self._function = model, dataset, function
        self._batch_size, self._options = batch_size, options
        self._in_step = in_step
        self._sums: Sums = {}
        self._names: Collection[str] = ()
        self._planned: tuple[int, int, int] | None = None
        self._batches: Iterator[tuple[int, Any]] = iter(())

    @property
    def topic(self) -> int:
        """The topic of the pass's agreements: the same number on all ranks, another for other data or functions."""
        name = getattr(self._function, "__qualname__", type(self._function).__qualname__)
        return zlib.crc32(f"{name} {self._length} {self._batch_size}".encode())

    def run(self, collectives: Collectives) -> dict[str, float]:
        """Run the pass, and return the means over the dataset, the same on all ranks."""
        while self._done < self._length:
            agreed = collectives.hold(self.topic, self._round)
            if agreed is None:  # the others finished it before, so compute it alone
                agreed = self._round(0, 1)
            self._sums = total([self._sums, agreed])
        samples = self._sums.pop(_SAMPLES)
        return {name: value / samples for name, value in self._sums.items()}

    @property
    def _done(self) -> int:
        return int(self._sums.get(_SAMPLES, 0))

    def _round(self, number: int, ranks: int) -> Sums:
        """Return the sums over the batches of rank ``number`` in the next round."""
        *_, end = self._piece(self._done, number, ranks)
        if self._planned != (self._done, number, ranks):
            self._batches = self._load(number, ranks)
        self._planned = (end, number, ranks)
        count = len(self._cuts(self._done, number, ranks))
        with _evaluating(self._model), torch.no_grad():
            return total([self._measured(size, batch) for size, batch in islice(self._batches, count)])

    def _measured(self, size: int, batch: Any) -> Sums:
        """Return the sums over a batch that counts as ``size`` samples."""
        result = self._function(batch)
        if not isinstance(result, Mapping):
            raise UserError(
                f"session.evaluate: the function must return a dict of means by name, got {type(result).__name__}"
            )
        values = {name: number(f"session.evaluate: {name!r}", value) for name, value in result.items()}
        self._names = self._names or values.keys()
        if values.keys() != self._names:
            raise UserError(
                f"session.evaluate: the function returned {', '.join(map(repr, self._names))} for one batch and"
                f" {', '.join(map(repr, values)) or 'nothing'} for another: return the same names for every batch"
            )
        return {name: value * size for name, value in values.items()} | {_SAMPLES: float(size)} if size else {}

    def _piece(self, done: int, number: int, ranks: int) -> tuple[int, int, int]:
        """Return [start, stop) of rank ``number`` in the round that begins at ``done``, and the end of the round."""
        samples = min(ranks * ROUND_BATCHES * self._batch_size, self._length - done)
        return done + samples * number // ranks, done + samples * (number + 1) // ranks, done + samples

    def _load(self, number: int, ranks: int) -> Iterator[tuple[int, Any]]:
        """Return (samples, batch) of this round and all later ones, in a group that does not change."""
        cuts: list[tuple[int, range]] = []
        done = self._done
        while done < self._length:
            cuts += self._cuts(done, number, ranks)
            *_, done = self._piece(done, number, ranks)
        batches = [list(batch) for _, batch in cuts]
        try:
            loader = DataLoader(self._dataset, batch_sampler=batches, **self._options)
        except (TypeError, ValueError) as error:
            raise UserError(f"session.evaluate divides the dataset in its order into batches: {error}") from error
        return zip((size for size, _ in cuts), loader, strict=True)

    def _cuts(self, done: int, number: int, ranks: int) -> list[tuple[int, range]]:
        """Return (count, samples) of each batch of rank ``number`` in this round; batches to keep in step count 0."""
        start, stop, _ = self._piece(done, number, ranks)
        own = [range(cut, min(cut + self._batch_size, stop)) for cut in range(start, stop, self._batch_size)]
        together = self._in_step if ranks > 1 else 1
        first = number - number % together
        pieces = (self._piece(done, one, ranks) for one in range(first, first + together))
        most = max(-(-(end - begin) // self._batch_size) for begin, end, _ in pieces)
        return [(len(batch), batch) for batch in own] + [(0, range(done, done + 1))] * (most - len(own))


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """Set evaluation mode in the body, and restore each module's mode by its ``train``, which may do more."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            if module.training != mode:
                module.train(mode)
        reshard(model)
