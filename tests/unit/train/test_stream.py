"""Streams: each sample in exactly one step, through any change of the group."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

from pilot.core.errors import UserError
from pilot.train.data.sampler import Batching
from pilot.train.data.stream import StreamBatches
from pilot.train.data.training_loader import Stream
from tests.equivalence.loops import Loop
from tests.unit.train.positioned import LoopView, all_steps, batchings, changes


class Numbers(IterableDataset[int]):
    """0, 1, ... below ``length``; records what was read."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.read: list[int] = []

    def __iter__(self) -> Iterator[int]:
        for number in range(self.length):
            self.read.append(number)
            yield number


class Seekable(Numbers):
    def from_cursor(self, cursor: int) -> Iterator[int]:
        return iter(range(cursor, self.length))


@dataclass
class Reading(LoopView):
    """It learns how long its epoch is."""

    length: int | None = None

    def steps_done(self) -> int:
        return len({share.cursor for share, _ in self.begun[:-1]})

    def epoch_has(self, samples: int) -> None:
        self.length = samples


@settings(deadline=None)
@given(length=st.integers(0, 60), batching=batchings, changes=changes, source=st.sampled_from([Numbers, Seekable]))
def test_the_ranks_take_each_sample_once_whatever_happens_to_the_group(
    length: int, batching: Batching, changes: list[tuple[int, bool]], source: type[Numbers]
) -> None:
    loops = [Reading(rank, 4) for rank in range(4)]
    streams = [Stream(StreamBatches(loop, source(length), batching)) for loop in loops]
    taken: list[int] = []
    for batches, void in all_steps(streams, loops, changes):
        assert all(len(batch) for batch in batches)
        taken += [] if void else sorted(number for batch in batches for number in batch.tolist())
    assert taken == list(range(length))
    assert loops[0].length == length


def test_a_rank_holds_its_share_only_and_reads_nothing_ahead() -> None:
    loop, source = Reading(rank=1, size=2), Numbers(100)
    stream = Stream(StreamBatches(loop, source, Batching(per_node=4)))
    iterator = iter(stream)
    assert next(iterator).tolist() == [4, 5, 6, 7]
    assert source.read == list(range(8))


def test_drop_last_leaves_out_the_step_that_is_not_full() -> None:
    loop = Reading(rank=0, size=1)
    batches = []
    for batch in Stream(StreamBatches(loop, Numbers(10), Batching(total=4, drop_last=True))):
        batches.append(batch.tolist())
        loop.cursor += 4
    assert batches == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert loop.length == 10


@pytest.mark.parametrize("workers", [0, 1])
def test_a_session_trains_on_a_stream_and_its_source_may_prefetch(workers: int) -> None:
    source, seen = DataLoader(Numbers(10), batch_size=None, num_workers=workers), list[int]()
    loop = Loop(model=nn.Linear(1, 1), optimizer=partial(torch.optim.SGD, lr=0.01), data=source, stream=True)

    for _ in loop.session.epochs(2):
        for numbers in loop.loader:
            loop.step(numbers.float().unsqueeze(1))
            seen += numbers.tolist()
    assert seen == [*range(10)] * 2
    assert loop.session.steps == 6


@pytest.mark.parametrize(
    ("source", "stream", "line"),
    [
        (iter([1, 2]), True, "read only once"),
        (3, True, "'int' object is not iterable"),
        (Numbers(3), False, r"session\.stream"),
    ],
)
def test_a_source_that_cannot_be_read_again_is_refused(source: Any, stream: bool, line: str) -> None:
    with pytest.raises(UserError, match=line):
        Loop(data=source, stream=stream)
