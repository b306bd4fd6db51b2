"""The order of an epoch's samples."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from pilot.train.data.order import MAX_AT_ONCE, Bijection, Drawn, Order, Sequential, permutation, shuffled
from pilot.train.data.sampler import mix


def test_an_epoch_s_order_depends_on_seed_and_epoch_alone() -> None:
    one = permutation(3, 5, 100)
    np.testing.assert_array_equal(one, permutation(3, 5, 100))
    assert sorted(one.tolist()) == list(range(100))
    assert one.tolist() != permutation(3, 6, 100).tolist()
    assert one.tolist() != permutation(4, 5, 100).tolist()


def test_every_version_draws_the_same() -> None:
    """A run resumed from a checkpoint of an earlier version continues in the same order."""
    assert (mix(0), mix(1, 2, 3)) == (8147104208329303767, 3851293329796251419)
    assert permutation(7, 2, 12).tolist() == [3, 4, 2, 9, 1, 10, 11, 6, 8, 0, 5, 7]
    assert shuffled(3, MAX_AT_ONCE + 5).indices(2, 10, 14).tolist() == [409231, 313615, 241563, 548851]
    assert [shuffled(3, length).shuffle for length in (MAX_AT_ONCE, MAX_AT_ONCE + 1)] == ["True", "in blocks"]
    assert Drawn(3, 1000, 90_000).indices(2, 65_533, 65_539).tolist() == [610, 264, 794, 85, 539, 850]
    odd, even = Bijection(3, 1000), Bijection(11, 1 << 40)
    assert odd(np.arange(5, dtype=np.uint64)).tolist() == [622, 480, 999, 743, 642]
    assert even(np.arange(3, dtype=np.uint64)).tolist() == [845076898514, 387408833309, 1064694921038]


def test_each_epoch_has_its_order_in_whatever_turn_they_come() -> None:
    order = shuffled(7, 50)
    for epoch in (0, 0, 1, 2, 7, 8, 3):
        assert order.indices(epoch, 10, 30).tolist() == permutation(7, epoch, 50)[10:30].tolist()
    long = shuffled(3, MAX_AT_ONCE + 5)
    for epoch in (2, 4, 4, 2):
        assert long.indices(epoch, 10, 14).tolist() == shuffled(3, MAX_AT_ONCE + 5).indices(epoch, 10, 14).tolist()


def test_a_complete_order_is_one_block_whatever_its_length() -> None:
    assert shuffled(7, 70_000).indices(2, 0, 70_000).tolist() == permutation(7, 2, 70_000).tolist()


def test_in_its_own_order_an_epoch_is_the_dataset_and_each_order_knows_its_length() -> None:
    own = Sequential(7)
    assert [own.indices(epoch, 2, 5).tolist() for epoch in (0, 3)] == [[2, 3, 4]] * 2
    orders: list[Order] = [own, shuffled(3, 8), shuffled(3, MAX_AT_ONCE + 9), Drawn(3, 1000, 10)]
    assert [order.length for order in orders] == [7, 8, MAX_AT_ONCE + 9, 10]


def test_a_new_plan_makes_no_new_order(monkeypatch: pytest.MonkeyPatch) -> None:
    order = shuffled(7, 50)
    before = order.indices(2, 0, 50).tolist()
    monkeypatch.setattr("pilot.train.data.order.permutation", None)
    assert order.indices(2, 0, 50).tolist() == before


@pytest.mark.parametrize("length", [1, 2, 3, 5, 64, 65, 1000, 4096, MAX_AT_ONCE + 1])
def test_a_bijection_gives_each_number_once(length: int) -> None:
    found = Bijection(3, length)(np.arange(length, dtype=np.uint64))
    assert np.array_equal(np.sort(found), np.arange(length))


def test_an_order_in_blocks_does_not_depend_on_how_it_is_read() -> None:
    """And a piece in the middle of an epoch of any length costs a block, not the epoch."""
    complete = shuffled(3, MAX_AT_ONCE + 5).indices(2, 0, MAX_AT_ONCE + 5).tolist()
    assert sorted(complete) == list(range(MAX_AT_ONCE + 5))
    assert shuffled(3, MAX_AT_ONCE + 5).indices(2, 16_380, 16_390).tolist() == complete[16_380:16_390]
    assert shuffled(3, MAX_AT_ONCE + 5).indices(2, MAX_AT_ONCE, MAX_AT_ONCE + 5).tolist() == complete[MAX_AT_ONCE:]
    assert shuffled(3, MAX_AT_ONCE + 5).indices(3, 0, 50).tolist() != complete[:50]
    assert len(set(shuffled(3, 10**12).indices(4, 10**11, 10**11 + 100).tolist())) == 100


def chi_square(counts: Any, expected: float) -> float:
    """Standardised: for a good shuffle it is normal with mean 0 and deviation 1."""
    counts = np.asarray(counts, np.float64)
    degrees = counts.size - 1
    return float((((counts - expected) ** 2 / expected).sum() - degrees) / np.sqrt(2 * degrees))


@pytest.mark.parametrize("key", range(4))
def test_an_order_in_blocks_is_a_good_shuffle(key: int) -> None:
    """Sample positions, successors, runs, fixed points, and consecutive epochs, all as by chance."""
    length = 1_200_000
    one, other = (
        Bijection(mix(key, epoch), length)(np.arange(length, dtype=np.uint64)).astype(np.int64) for epoch in (0, 1)
    )
    cells, cell = 100, length // 100
    place = np.arange(length) // cell
    scores = [chi_square(np.bincount(place * cells + one // cell, minlength=cells**2), cell / cells)]
    following = np.bincount((one[:-1] // cell) * cells + one[1:] // cell, minlength=cells**2)
    scores.append(chi_square(following, (length - 1) / cells**2))
    scores.append(chi_square(np.bincount((one // cell) * cells + other // cell, minlength=cells**2), cell / cells))
    scores.append(chi_square(np.bincount((one[1:] - one[:-1]) % 64, minlength=64), (length - 1) / 64))
    ascents = (one[1:] > one[:-1]).sum()
    scores.append(float((ascents - length / 2) / np.sqrt(length / 12)))
    for lag in (1, 2, 256):
        scores.append(float(np.corrcoef(one[:-lag], one[lag:])[0, 1] * np.sqrt(length)))
    assert max(map(abs, scores)) < 4.5, scores
    assert (one == np.arange(length)).sum() < 10
    assert (one == other).sum() < 10


def test_over_many_epochs_a_sample_comes_in_each_place_equally_often() -> None:
    """A sample's positions over many epochs: each equally often."""
    counts = np.zeros((50, 50))
    for epoch in range(5000):
        counts[np.arange(50), Bijection(mix(1, epoch), 50)(np.arange(50, dtype=np.uint64)).astype(np.int64)] += 1
    assert abs(chi_square(counts, 100.0)) < 4.5


def test_drawing_does_not_depend_on_how_positions_are_divided() -> None:
    drawn = Drawn(3, 10, 1 << 18)
    complete = drawn.indices(1, 0, 1 << 18).tolist()
    edges = [0, 1, 65_535, 65_536, 65_537, 200_000, 1 << 18]
    parts = [drawn.indices(1, start, stop).tolist() for start, stop in itertools.pairwise(edges)]
    assert [index for part in parts for index in part] == complete
    assert Drawn(3, 10, 10**12).indices(1, 65_530, 65_540).tolist() == complete[65_530:65_540]
    assert np.bincount(complete, minlength=10).min() > 0.95 * len(complete) / 10
    assert complete[:100] != drawn.indices(2, 0, 100).tolist()
