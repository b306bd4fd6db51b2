"""The order of an epoch's samples."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from pilot.train import order
from pilot.train.order import Drawn, Sequential, Shuffled, permutation
from pilot.train.sampler import mix


def test_an_epoch_s_order_depends_on_seed_and_epoch_alone() -> None:
    one = permutation(3, 5, 100)
    np.testing.assert_array_equal(one, permutation(3, 5, 100))
    assert sorted(one.tolist()) == list(range(100))
    assert one.tolist() != permutation(3, 6, 100).tolist()
    assert one.tolist() != permutation(4, 5, 100).tolist()


def test_it_is_numpy_s_permutation_at_half_the_memory() -> None:
    """As it was in versions before, so that a checkpoint of one of them may be resumed in the middle of an epoch."""
    one = permutation(3, 5, 1000)
    assert one.dtype == np.int32
    assert one.tolist() == np.random.Generator(np.random.PCG64(mix(3, 5))).permutation(1000).tolist()


@pytest.mark.parametrize("long", [1, 1 << 20])
def test_each_epoch_has_its_order_in_whatever_turn_they_come(monkeypatch: pytest.MonkeyPatch, long: int) -> None:
    monkeypatch.setattr(order, "_LONG", long)  # 1: each is made in the background
    shuffled = Shuffled(7, 50)
    for epoch in (0, 0, 1, 2, 7, 8, 3):
        assert shuffled.indices(epoch, 10, 30) == permutation(7, epoch, 50)[10:30].tolist()


def test_a_new_plan_makes_no_new_order(monkeypatch: pytest.MonkeyPatch) -> None:
    shuffled = Shuffled(7, 50)
    before = shuffled.indices(2, 0, 50)
    monkeypatch.setattr(order, "permutation", None)
    assert shuffled.indices(2, 0, 50) == before


def test_without_shuffling_samples_come_as_they_are() -> None:
    assert Sequential(10).indices(3, 4, 7) == [4, 5, 6]


def test_drawing_does_not_depend_on_how_positions_are_divided() -> None:
    drawn = Drawn(3, 10, 1 << 18)
    whole = drawn.indices(1, 0, 1 << 18)
    edges = [0, 1, 65_535, 65_536, 65_537, 200_000, 1 << 18]
    parts = [drawn.indices(1, start, stop) for start, stop in itertools.pairwise(edges)]
    assert [index for part in parts for index in part] == whole
    assert Drawn(3, 10, 10**12).indices(1, 65_530, 65_540) == whole[65_530:65_540]
    assert np.bincount(whole, minlength=10).min() > 0.95 * len(whole) / 10
    assert whole[:100] != drawn.indices(2, 0, 100)
