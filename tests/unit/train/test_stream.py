"""Streams: each sample in exactly one step, through any change of the group."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

import pilot.train
from pilot.core.errors import UserError
from pilot.train.data.sampler import Batching
from pilot.train.data.stream import StreamBatches
from pilot.train.data.training_loader import Stream
from tests.unit.train.test_loader import LoopView, batchings, changes


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
    script = iter(changes)
    ranks = 4
    courses = [Reading(rank, ranks) for rank in range(ranks)]
    streams = [Stream(StreamBatches(loop, source(length), batching)) for loop in courses]
    iterators = [iter(stream) for stream in streams]
    taken: list[int] = []
    while (step := [one_step(iterators[rank], courses[rank]) for rank in range(courses[0].size)])[0] is not None:
        size, void = next(script, (courses[0].size, False))
        shares = [loop.begun[-1][0] for loop in courses[: courses[0].size]]
        assert len({(share.cursor, share.cursor_end) for share in shares}) == 1
        if not void:
            taken += sorted(number for numbers in step for number in numbers or ())
        for loop in courses:
            loop.cursor = loop.cursor if void else shares[0].cursor_end
            loop.revision += void or size != loop.size
            loop.size = size
    assert taken == list(range(length))
    assert courses[0].length == length


def one_step(iterator: Iterator[Any], loop: Reading) -> list[int] | None:
    """The samples of a rank in one step that count; None: the epoch is over."""
    numbers: list[int] = []
    while (batch := next(iterator, None)) is not None:
        share, number = loop.begun[-1]
        assert len(batch) == share.batches[number][1] - share.batches[number][0] > 0
        numbers += batch.tolist() if share.samples else []
        if number + 1 == len(share.batches):
            return numbers
    return None


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
    model = nn.Linear(1, 1)
    session = pilot.train.session(model, torch.optim.SGD(model.parameters(), lr=0.01))
    source = DataLoader(Numbers(10), batch_size=None, num_workers=workers)
    stream = session.stream(source, global_batch_size=4)
    seen = []
    for _ in session.epochs(2):
        for numbers in stream:
            model.zero_grad()
            model(numbers.float().unsqueeze(1)).sum().backward()
            session.step()
            seen += numbers.tolist()
    assert seen == [*range(10)] * 2
    assert session.steps == 6


def test_what_cannot_be_read_or_only_once_is_refused() -> None:
    model = nn.Linear(1, 1)
    session = pilot.train.session(model, torch.optim.SGD(model.parameters(), lr=0.01))
    with pytest.raises(UserError, match="read only once"):
        session.stream(iter([1, 2]), global_batch_size=1)
    with pytest.raises(UserError, match="'int' object is not iterable"):
        session.stream(3, global_batch_size=1)  # type: ignore[arg-type]  # that is the mistake
    with pytest.raises(UserError, match=r"session\.stream"):
        session.loader(Numbers(3), global_batch_size=1)
