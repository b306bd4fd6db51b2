"""Which rank takes which samples."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilot.core.errors import UserError
from pilot.train.data.sampler import Batching, StepShare, mix
from pilot.train.state.shares import divided as quotas_of
from tests import golden

sizes = st.integers(1, 9)


def _covered(share: StepShare) -> list[int]:
    return [sample for start, stop in share.batches for sample in range(start, stop)]


def weights(share: StepShare) -> list[float]:
    return [share.weight(batch) for batch in range(len(share.batches))]


batchings = st.one_of(
    st.builds(
        Batching, per_node=st.integers(1, 40), micro=st.none() | st.integers(1, 10), ranks_per_node=st.integers(1, 4)
    ),
    st.builds(Batching, total=st.integers(1, 200), micro=st.none() | st.integers(1, 10)),
)


@given(batchings, st.integers(0, 300), st.lists(sizes, min_size=1, max_size=20))
def test_each_sample_is_taken_once_however_the_group_changes(
    batching: Batching, length: int, group_sizes: list[int]
) -> None:
    group_sizes = [nodes * batching.ranks_per_node for nodes in group_sizes]
    taken: list[int] = []
    cursor = step = 0
    while not batching.over(cursor, length, size := group_sizes[step % len(group_sizes)]):
        shares = [batching.share(cursor, length, rank, size) for rank in range(size)]
        taken += sorted(sample for share in shares for sample in _covered(share) if share.samples)
        assert {(share.cursor, share.cursor_end) for share in shares} == {(cursor, shares[0].cursor_end)}
        cursor, step = shares[0].cursor_end, step + 1
    assert taken == list(range(length))


@given(batchings, st.integers(1, 300), st.data(), sizes)
def test_the_weights_of_a_step_add_up_to_one(batching: Batching, length: int, data: st.DataObject, size: int) -> None:
    cursor = data.draw(st.integers(0, length - 1))
    size *= batching.ranks_per_node
    shares = [batching.share(cursor, length, rank, size) for rank in range(size)]
    assert sum(weight for share in shares for weight in weights(share)) == pytest.approx(1.0)


@given(batchings, st.integers(1, 300), st.data(), sizes)
def test_micro_batches_cover_a_share_and_a_rank_without_samples_gets_a_batch_that_does_not_count(
    batching: Batching, length: int, data: st.DataObject, size: int
) -> None:
    cursor = data.draw(st.integers(0, length - 1))
    size *= batching.ranks_per_node
    for rank in range(size):
        share = batching.share(cursor, length, rank, size)
        covered = _covered(share)
        assert covered
        assert all(stop - start <= (batching.micro or length) for start, stop in share.batches)
        if share.samples:
            assert len(covered) == share.samples
            assert covered == list(range(covered[0], covered[-1] + 1))
        else:
            assert weights(share) == [0.0]


@given(st.integers(1, 40), st.integers(1, 10), st.integers(1, 4), st.integers(1, 3), st.integers(1, 300), st.data())
def test_in_step_all_ranks_of_a_node_run_as_many_micro_batches_and_those_that_are_added_do_not_count(
    per_node: int, micro: int, ranks: int, nodes: int, length: int, data: st.DataObject
) -> None:
    each = Batching(per_node=per_node, micro=micro, ranks_per_node=ranks)
    cursor, size = data.draw(st.integers(0, length - 1)), nodes * ranks
    for first in range(0, size, ranks):
        alone, together = (
            [batching.share(cursor, length, rank, size) for rank in range(first, first + ranks)]
            for batching in (each, replace(each, in_step=True))
        )
        most = max(len(share.batches) for share in alone)
        for own, share in zip(alone, together, strict=True):
            added = most - len(own.batches)
            assert len(share.batches) == most
            assert (share.samples, share.batches[: len(own.batches)]) == (own.samples, own.batches)
            assert weights(share) == weights(own) + [0.0] * added


def test_without_a_word_of_the_others_each_batch_counts() -> None:
    assert weights(StepShare(0, 8, 4, ((0, 1), (1, 4)))) == [0.125, 0.375]


def test_a_global_batch_is_divided_evenly_and_a_short_last_step_fills_the_lower_ranks() -> None:
    batching = Batching(total=10)
    assert [batching.share(0, 100, rank, 4).samples for rank in range(4)] == [3, 3, 2, 2]
    assert [batching.share(96, 100, rank, 4).samples for rank in range(4)] == [3, 1, 0, 0]


def test_a_node_s_samples_are_divided_over_its_ranks() -> None:
    batching = Batching(per_node=10, ranks_per_node=4)
    assert [batching.share(0, 100, rank, 8).samples for rank in range(8)] == [3, 3, 2, 2, 3, 3, 2, 2]
    assert batching.share(0, 100, 0, 8).cursor_end == 20
    assert [batching.share(88, 100, rank, 8).samples for rank in range(8)] == [3, 3, 2, 2, 2, 0, 0, 0]
    assert [Batching(per_node=1, ranks_per_node=2).share(0, 9, rank, 4).samples for rank in range(4)] == [1, 0, 1, 0]


@given(st.integers(1, 99), st.integers(1, 10), st.lists(st.lists(st.integers(1, 9), min_size=2), min_size=1), st.data())
def test_with_shares_that_change_each_sample_is_taken_once(
    length: int, micro: int, weights: list[list[int]], data: st.DataObject
) -> None:
    total = data.draw(st.integers(max(map(len, weights)), 100))
    batching, taken, cursor, step = Batching(total=total, micro=micro), list[int](), 0, 0
    while cursor < length:
        now = weights[step % len(weights)]
        bounds = (0, *np.cumsum(quotas_of(total, np.array(now), 0)).tolist())
        shares = [batching.share(cursor, length, rank, len(now), bounds) for rank in range(len(now))]
        taken += [sample for share in shares for sample in _covered(share) if share.samples]
        for share in shares:
            sizes = [stop - start for start, stop in share.batches]
            assert max(sizes) <= micro
            assert max(sizes) - min(sizes) <= 1, "no batch is tiny"
        cursor, step = shares[0].cursor_end, step + 1
    assert taken == list(range(length))


def test_planned_ahead_a_step_has_the_shares_of_its_number() -> None:
    batching, even, other = Batching(total=8), (), (0, 5, 8)
    planned = batching.shares(0, 30, 0, 2, lambda step: other if step in (1, 3) else even)
    assert [share.samples for share in planned] == [4, 5, 4, 5]


def test_drop_last_leaves_out_a_step_that_is_not_full() -> None:
    batching = Batching(per_node=10, drop_last=True)
    assert [share.cursor for share in batching.shares(0, 59, 0, 2)] == [0, 20]
    assert [share.cursor for share in batching.shares(0, 60, 0, 2)] == [0, 20, 40]


def test_mixed_seeds_differ_with_each_number_and_their_order() -> None:
    seeds = {mix(a, b, c) for a in range(10) for b in range(10) for c in range(10)}
    assert len(seeds) == 1000
    assert all(0 <= seed < 2**63 for seed in seeds)


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"per_node": 1, "total": 1},
        {"per_node": 0},
        {"total": 4, "micro": 0},
        {"total": 4, "sharing": "fair"},
    ],
)
def test_batch_sizes_that_make_no_sense_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(UserError):
        Batching(**wrong)


@given(batchings, st.integers(0, 300), st.integers(0, 50), sizes, st.booleans())
def test_planned_ahead_a_rank_has_the_parts_that_it_has_step_by_step(
    batching: Batching, length: int, cursor: int, size: int, drop_last: bool
) -> None:
    batching = replace(batching, drop_last=drop_last)
    size *= batching.ranks_per_node
    for rank in range(size):
        at = cursor
        for planned in batching.shares(cursor, length, rank, size):
            assert planned == batching.share(at, length, rank, size)
            at = planned.cursor_end
        assert batching.over(at, length, size)


def test_every_version_divides_an_epoch_alike() -> None:
    """A group resumed from a checkpoint of an earlier version continues as that version would have."""
    golden.check("shares.digests", golden.digests((f"seed {seed}", divided(random.Random(seed))) for seed in range(60)))


def divided(rng: random.Random) -> list[object]:
    """All results of a batching for an epoch, for one choice of its parameters."""
    ranks = rng.choice((1, 1, 2, 3))
    per_node = rng.choice((None, rng.randint(1, 9)))
    batching = Batching(
        per_node=per_node, total=None if per_node else rng.randint(1, 20), ranks_per_node=ranks,
        micro=rng.choice((None, 1, 2, 5)), drop_last=rng.random() < 0.5,
    )  # fmt: skip
    size, length = ranks * rng.randint(1, 4), rng.randint(0, 90)
    found: list[object] = [batching.of_one_node, batching.full(size)]
    for rank in range(size):
        shares = list(batching.shares(rng.randrange(1 + length), length, rank, size))
        found += [
            shares,
            [*map(weights, shares)],
            batching.batches(length, rank, size),
            batching.quota_before(rank, size),
        ]
    found.append([batching.over(cursor, length, size) for cursor in range(length + 1)])
    return found


def test_an_integer_of_numpy_is_accepted() -> None:
    batching = Batching(total=np.int64(4), micro=np.int32(2))  # type: ignore[arg-type]  # as from a search over sizes
    assert [type(size) for size in (batching.total, batching.micro)] == [int, int]
    assert batching == Batching(total=4, micro=2)
