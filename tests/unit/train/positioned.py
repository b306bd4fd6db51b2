"""Loaders of a loop that a test positions, over datasets that draw random numbers."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st
from torch.utils.data import Dataset

from pilot.train.data import rng
from pilot.train.data.loader import DatasetBatches
from pilot.train.data.order import shuffled
from pilot.train.data.sampler import Batching, Bounds, StepShare
from pilot.train.data.training_loader import Loader, Rest, Stream
from tests import sample_streams

DRAWS: dict[str, Callable[[], float]] = {
    "torch": lambda: torch.rand(()).item(),
    "torch's normal": lambda: torch.randn(()).item(),
    "numpy": np.random.rand,
    "numpy's normal": np.random.randn,
    "python": random.random,
    "python's normal": lambda: random.gauss(0, 1),
}


def made(loop: Any, dataset: Any, batching: Batching, **given: Any) -> Loader:
    return Loader(DatasetBatches(loop, dataset, batching, **given), dataset)


class Noisy(Dataset[Any]):
    """Sample i draws from the generators ``draws[i]``, in turn."""

    def __init__(self, draws: list[tuple[str, ...]]) -> None:
        self.draws = draws

    def __len__(self) -> int:
        return len(self.draws)

    def __getitem__(self, index: int) -> tuple[int, float]:
        return index, sum((DRAWS[name]() for name in self.draws[index]), 0.0)


class NoisyAtOnce(Noisy):
    """The same, with ``__getitems__`` instead of ``__getitem__``."""

    def __getitem__(self, index: int) -> tuple[int, float]:
        raise AssertionError("torch's DataLoader would not call it either")

    def __getitems__(self, indices: list[int]) -> list[tuple[int, float]]:
        return [Noisy.__getitem__(self, index) for index in indices]


@dataclass
class LoopView:
    """A session at a position that the test sets; its training loop draws random numbers, too."""

    rank: int = 0
    size: int = 1
    cursor: int = 0
    epoch: int = 0
    seed: int = 0
    revision: int = 0
    steps: int = 0
    begun: list[tuple[StepShare, int]] = field(default_factory=list)
    seen_again: list[tuple[StepShare, int]] = field(default_factory=list)

    def where(self) -> tuple[int, int, int, int, int]:
        return self.epoch, self.cursor, self.rank, self.size, self.revision

    def rehearsal(self) -> None:
        return None

    def steps_done(self) -> int:
        return self.steps

    def bounds(self, _step: int) -> Bounds:
        return ()

    def deal(self) -> None:
        return None

    def nodes(self) -> int:
        return 1

    def is_over(self, batching: Batching, cursor: int, length: int, size: int) -> bool:
        return batching.over(cursor, length, size)

    def align(self) -> None:
        pass

    def epoch_is_over(self) -> bool:
        return True

    def epoch_has(self, _samples: int) -> None:
        raise AssertionError("only a stream finds that out")

    def by_epoch(self) -> bool:
        return True

    def begin_uncounted(self, share: StepShare, batch: int) -> None:
        self.seen_again.append((share, batch))

    def end_batch(self) -> None:
        pass

    def batches(self, rest: Rest) -> Iterator[Any]:
        return rest()

    def next_batch(self) -> Any:
        raise NotImplementedError

    def begin(self, share: StepShare, batch: int) -> None:
        self.begun.append((share, batch))
        rng.seed_all(len(self.begun) * (self.rank + 1))
        np.random.randn()
        random.gauss(0, 1)


class Walking(LoopView):
    """Each step that it begins is applied."""

    def begin(self, share: StepShare, batch: int) -> None:
        super().begin(share, batch)
        self.cursor = share.cursor_end if batch + 1 == len(share.batches) else share.cursor

    def epoch_is_over(self) -> bool:
        self.cursor = 0
        return True


def one_by_one(dataset: Noisy, seed: int, epoch: int) -> list[tuple[int, float]]:
    """In the order of the dataset."""
    samples = []
    for position, index in enumerate(shuffled(seed, len(dataset)).indices(epoch, 0, len(dataset)).tolist()):
        sample_streams.begin(seed, epoch, position)
        samples.append(Noisy.__getitem__(dataset, index))
    return sorted(samples)


def one_step(iterator: Iterator[Any], loop: LoopView) -> list[Any] | None:
    """The batches of a rank in one step that count; None: the epoch is over."""
    batches = []
    while (batch := next(iterator, None)) is not None:
        share, number = loop.begun[-1]
        batches += [batch] if share.samples else []
        if number + 1 == len(share.batches):
            return batches
    return None


def all_steps(
    loaders: Sequence[Stream], loops: Sequence[LoopView], changes: Iterable[tuple[int, bool]]
) -> Iterator[tuple[list[Any], bool]]:
    """The steps of an epoch in which the group changes: the batches of all ranks that count, and whether the step is
    void. ``changes``: after each step, the next group's size, and whether the step is void.
    """
    iterators, script, first = [iter(loader) for loader in loaders], iter(changes), loops[0]
    while (step := [one_step(iterators[rank], loops[rank]) for rank in range(first.size)])[0] is not None:
        size, void = next(script, (first.size, False))
        shares = [loop.begun[-1][0] for loop in loops[: first.size]]
        assert len({(share.cursor, share.cursor_end) for share in shares}) == 1
        yield [batch for batches in step for batch in batches or ()], void
        for loop in loops:
            loop.cursor = loop.cursor if void else shares[0].cursor_end
            loop.revision += void or size != loop.size
            loop.size = size


def samples_in(batches: Iterable[Any]) -> list[tuple[int, float]]:
    return [pair for batch in batches for pair in zip(*(column.tolist() for column in batch), strict=True)]


draws = st.lists(st.sampled_from(sorted(DRAWS)), max_size=3).map(tuple)
batchings = st.one_of(
    st.builds(Batching, per_node=st.integers(1, 5), micro=st.none() | st.integers(1, 3)),
    st.builds(Batching, total=st.integers(1, 12), micro=st.none() | st.integers(1, 3)),
)
changes = st.lists(st.tuples(st.integers(1, 4), st.booleans()), max_size=30)
