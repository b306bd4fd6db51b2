"""Each sample has its own seed for each generator."""

from __future__ import annotations

import numpy as np
import pytest

from pilot.train.data.seeded import MicroBatch, seeds
from tests import sample_streams

MANY = 100_000


def micro_batch(start: int, count: int, *, seed: int = 3, epoch: int = 5) -> MicroBatch:
    return MicroBatch(seed, epoch, start, np.zeros(count, np.int64))


@pytest.mark.parametrize("start", [0, 7, 2**32 - 3, 2**61])
def test_they_depend_on_the_position_and_not_on_the_piece(start: int) -> None:
    expected = [sample_streams.number(3, 5, start + i, 2) for i in range(6)]
    assert seeds(micro_batch(start, 6), 2) == expected
    assert seeds(micro_batch(start, 2), 2) + seeds(micro_batch(start + 2, 4), 2) == expected


def test_no_two_samples_of_an_epoch_have_the_same() -> None:
    assert len({*seeds(micro_batch(0, MANY), 1)}) == MANY


def test_another_generator_epoch_or_run_has_others() -> None:
    every = [seeds(micro_batch(0, 1000, seed=s, epoch=e), lane) for s in (0, 1) for e in (0, 1) for lane in (1, 2, 3)]
    assert len({number for some in every for number in some}) > 12_000 - 10


def test_each_bit_is_as_often_set_as_not() -> None:
    made = np.array(seeds(micro_batch(0, MANY), 1), np.uint32)
    for bit in range(32):
        assert abs(np.mean(made >> bit & 1) - 0.5) < 0.01
