"""Ranks' shares follow their times, when that is worth it."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import TensorDataset

from pilot.train.data.loader import DatasetBatches
from pilot.train.data.rehearsal import Rehearsal
from pilot.train.data.sampler import Batching, Bounds, StepShare
from pilot.train.data.stream import StreamBatches
from pilot.train.data.training_loader import Batches
from pilot.train.state.shares import LEAST_GAIN, MOST_TIMED, REFINED_GAIN, WINDOW, Shares, divided
from pilot.train.state.state_transfer import Holding
from tests.unit.train.positioned import Walking

SAMPLES = 128
Speeds = Callable[[int], list[float]]
"""Returns the ranks' speeds in a step."""


def always(*speeds: float) -> Speeds:
    return lambda _step: [*speeds]


def holding(weight: int = 0, freedom: int = 0, look_ahead: int = 0, micro: int = 0) -> Holding:
    return Holding(1, 0, 0, weight=weight, freedom=freedom, look_ahead=look_ahead, micro=micro)


def batches_of(batching: Batching, workers: int = 0) -> Batches:
    data = TensorDataset(torch.zeros(SAMPLES))
    return DatasetBatches(Walking(), data, batching, options={"num_workers": workers})


@dataclass
class Group:
    """Ranks that take some time per step, and per sample. Of each step: ``slowest``, the slowest rank's time, and
    ``divisions``, its bounds.
    """

    speeds: Speeds
    batching: Batching = field(default_factory=lambda: Batching(total=SAMPLES, sharing="free"))
    workers: int = 0
    fixed_s: float = 1.0
    per_sample_s: float = 0.1
    noise: float = 0.0
    slowest: list[float] = field(default_factory=list)
    divisions: list[Bounds] = field(default_factory=list)

    def __post_init__(self) -> None:
        batches = batches_of(self.batching, self.workers)
        self.ranks = [Shares() for _ in self.speeds(0)]
        for one in self.ranks:
            one.made = lambda: batches
        self.step = 0
        self.begin(self.ranks)

    def begin(self, ranks: list[Shares]) -> None:
        self.ranks, table = ranks, [holding(*one.hello()) for one in ranks]
        for rank, one in enumerate(ranks):
            one.group_begins(rank, self.step, table)
        self._times, self._random = np.zeros(len(ranks)), random.Random(1)

    def run(self, steps: int) -> Group:
        for _ in range(steps):
            (bounds,) = {one.bounds(self.step) for one in self.ranks}
            times = [self._took(*one) for one in zip(self.shares(bounds), self.speeds(self.step), strict=True)]
            for one in self.ranks:
                one.stepped(self.step, SAMPLES, self._times)
            self._times, self.step = np.array(times), self.step + 1
            self.slowest.append(max(times))
            self.divisions.append(bounds)
        return self

    def shares(self, bounds: Bounds | None = None) -> list[int]:
        bounds, ranks = self.ranks[0].bounds(self.step) if bounds is None else bounds, len(self.ranks)
        return [self.batching.share(0, SAMPLES, rank, ranks, bounds).samples for rank in range(ranks)]

    def _took(self, samples: int, speed: float) -> float:
        noise = 1 + self._random.gauss(0, self.noise) if self.noise else 1
        return (self.fixed_s + self.per_sample_s * samples) / speed * noise


@given(
    st.integers(1, 300),
    st.lists(st.integers(1, 1 << 20), min_size=1, max_size=9),
    st.none() | st.floats(1, 3),
)
def test_each_rank_gets_its_part_of_all_samples(samples: int, weights: list[int], room: float | None) -> None:
    ranks = len(weights)
    samples = max(samples, ranks)
    most = 0 if room is None else int(max(-(-samples // ranks), samples / ranks * room))
    quotas = divided(samples, np.array(weights), most)
    assert quotas.sum() == samples
    assert min(2, samples // ranks) <= quotas.min()
    assert not most or quotas.max() <= most
    exact = [samples * weight / sum(weights) for weight in weights]
    if not most and min(exact) >= 2:
        assert all(abs(one - other) < 1 for one, other in zip(quotas.tolist(), exact, strict=True))


@given(st.integers(1, 300), st.integers(1, 9))
def test_equal_weights_divide_evenly(samples: int, ranks: int) -> None:
    samples = max(samples, ranks)
    even = [Batching(total=samples).share(0, samples, rank, ranks).samples for rank in range(ranks)]
    assert divided(samples, np.full(ranks, 7), 0).tolist() == even


def test_ranks_finish_together() -> None:
    group = Group(always(1, 1, 1, 0.5)).run(30)
    equal_s, ideal_s = (1 + 0.1 * SAMPLES / 4) / 0.5, (4 + 0.1 * SAMPLES) / 3.5
    assert group.slowest[0] == equal_s
    assert ideal_s <= group.slowest[-1] < 1.06 * ideal_s
    assert sum(group.shares()) == SAMPLES


@pytest.mark.parametrize("begins", range(20, 26))
@pytest.mark.parametrize("noise", [0.0, 0.03])
def test_a_rank_that_becomes_slow_is_followed_within_20_steps_and_so_is_its_recovery(begins: int, noise: float) -> None:
    group = Group(lambda step: [1, 1, 1, 0.5 if begins <= step < 60 else 1], noise=noise, fixed_s=0.3).run(100)
    ideals = [(4 * 0.3 + 0.1 * SAMPLES) / speeds for speeds in (3.5, 4)]
    assert max(group.slowest[begins + 20 : 60]) < (1.07 + 3 * noise) * ideals[0]
    assert max(group.slowest[80:]) < (1.07 + 3 * noise) * ideals[1]


@pytest.mark.parametrize(("ranks", "noise"), [(4, 0.0), (4, 0.03), (60, 0.1)])
def test_noise_moves_no_samples(ranks: int, noise: float) -> None:
    assert Group(always(*[1] * ranks), noise=noise).run(300).ranks[0].bounds(300) == ()


def test_a_gain_of_a_few_percent_is_left() -> None:
    assert Group(always(1, 1, 1, 1 - LEAST_GAIN)).run(60).shares() == [SAMPLES // 4] * 4


def test_a_change_that_makes_no_step_faster_is_undone_and_tried_more_and_more_rarely() -> None:
    """Some GPUs take as long for fewer samples."""
    group = Group(always(1, 0.5), per_sample_s=0.0).run(1200)
    changes = [step for step in range(1, 1200) if group.divisions[step] != group.divisions[step - 1]]
    assert 4 <= len(changes) <= 24
    gaps = [later - earlier for earlier, later in itertools.pairwise(changes)]
    assert set(gaps[::2]) == {FIRST_CHANGE}, "it is undone as soon as it is known to be of no use"
    waits = [FIRST_CHANGE + WINDOW * windows for windows in (0, 1, 3, 7, 15, 31, 63, 63, 63, 63)]
    assert gaps[1::2] == waits[: len(gaps) // 2]
    assert group.shares() == [SAMPLES // 2] * 2


def test_without_micro_batches_a_share_grows_by_a_quarter_and_the_loss_is_told() -> None:
    group = Group(always(1, 0.25), Batching(total=SAMPLES)).run(40)
    assert group.shares() == [80, 48]
    share = SAMPLES / 2
    limited_s, free_s = (1 + 4.8) / 0.25, (2 + 0.1 * SAMPLES) / 1.25
    assert group.ranks[0].limit_loss == pytest.approx(1 - free_s / limited_s, abs=0.1)
    for batching in (Batching(total=SAMPLES, micro=16), Batching(total=SAMPLES, sharing="free")):
        group = Group(always(1, 0.25), batching).run(40)
        assert max(group.shares()) > 1.4 * share
        assert group.ranks[0].limit_loss == 0.0


@pytest.mark.parametrize(
    "batching",
    [
        Batching(total=SAMPLES, sharing="equal"),
        Batching(per_node=SAMPLES // 2),
        Batching(total=SAMPLES, micro=8, in_step=True),
    ],
)
def test_shares_are_equal_on_request_with_a_batch_per_node_and_where_micro_batches_must_be_equal(
    batching: Batching,
) -> None:
    group = Group(always(1, 0.25), batching).run(40)
    assert group.ranks[0].bounds(40) == ()
    assert group.ranks[0].equal
    assert not Group(always(1, 0.25)).ranks[0].equal


def test_one_rank_that_wants_equal_shares_decides() -> None:
    group = Group(always(1, 0.25))
    for rank, one in enumerate(group.ranks):
        one.group_begins(rank, 0, [holding(freedom=2), holding(freedom=0)])
    assert group.run(40).shares() == [SAMPLES // 2] * 2


def test_who_stays_keeps_its_weight_and_a_newcomer_begins_with_the_mean() -> None:
    group = Group(always(1, 1, 0.5)).run(30)
    before = group.shares()
    newcomer = Shares()
    newcomer.made = group.ranks[0].made
    a, b, slow = group.ranks
    group.begin([slow, newcomer, a, b])
    own = group.shares()
    assert own[2] == pytest.approx(before[0] * 3 / 4, abs=1)
    assert own[0] == pytest.approx(before[2] * 3 / 4, abs=1)
    assert own[1] == pytest.approx(SAMPLES / 4, abs=1)
    group.begin([a, slow])
    assert group.shares()[1] / group.shares()[0] == pytest.approx(before[2] / before[0], abs=0.05)


def test_ranks_that_rehearse_get_no_share_and_the_others_keep_their_ratio() -> None:
    group = Group(always(1, 1, 0.5)).run(30)
    one, now = group.ranks[0], group.shares()
    bounds = one.bounds(group.step, Rehearsal(3, 1, 0, frozenset([1])))
    assert bounds == (0, pytest.approx(SAMPLES * now[0] / (now[0] + now[2]), abs=1), SAMPLES)


def test_a_trainer_that_resumes_begins_with_equal_shares() -> None:
    assert Group(always(1, 0.5)).shares() == [SAMPLES // 2] * 2


@pytest.mark.parametrize("micro", [None, 4])
def test_batches_that_are_loaded_ahead_keep_their_shares(micro: int | None) -> None:
    """Each rank learns of a change before its workers begin with the first step that it concerns."""
    batching = Batching(total=SAMPLES // 4, micro=micro, sharing="free")
    group = Group(always(1, 0.4), batching, workers=2, per_sample_s=1.0)
    loops = [Planned(group, rank) for rank in range(2)]
    data, options = TensorDataset(torch.zeros(40 * SAMPLES)), {"num_workers": 2}
    loaders = [DatasetBatches(loop, data, batching, shuffle=False, options=options) for loop in loops]
    iterators = [loader.rest_of_epoch() for loader in loaders]
    for one in group.ranks:
        one.made = lambda: loaders[0]
    group.begin(group.ranks)
    taken = []
    for _ in range(40):
        shares = [one_step(iterators[rank], loop) for rank, loop in enumerate(loops)]
        assert sum(share.samples for share in shares) == batching.total
        taken += [sample for share in shares for a, b in share.batches for sample in range(a, b)]
        times = np.array([share.samples / speed for share, speed in zip(shares, (1, 0.4), strict=True)])
        for one in group.ranks:
            one.stepped(group.step, SAMPLES // 4, group._times)
        group._times, group.step = times, group.step + 1
    assert sorted(taken) == list(range(40 * SAMPLES // 4))
    assert shares[0].samples > 2 * shares[1].samples


class Planned(Walking):
    """A rank's loop, whose loader asks for bounds ahead."""

    def __init__(self, group: Group, rank: int) -> None:
        super().__init__(rank, 2)
        self._group = group

    def steps_done(self) -> int:
        return self._group.step

    def bounds(self, step: int) -> Bounds:
        return self._group.ranks[self.rank].bounds(step)


def one_step(batches: Iterator[object], loop: Planned) -> StepShare:
    """Take a rank's batches of a step."""
    while True:
        next(batches)
        share, number = loop.begun[-1]
        if number + 1 == len(share.batches):
            return share


def test_a_change_of_shares_is_seen_by_a_stream_that_has_read_for_the_old_ones() -> None:
    loop = Changing()
    batches = StreamBatches(loop, range(8), Batching(total=8))
    (first,) = [next(batches.rest_of_epoch())]
    assert first.tolist() == [0, 1]


class Changing(Walking):
    """Another group, of the same size, begins while it aligns."""

    def __init__(self) -> None:
        super().__init__(0, 2)
        self.now: Bounds = (0, 5, 8)

    def align(self) -> None:
        self.now = (0, 2, 8)

    def bounds(self, _step: int) -> Bounds:
        return self.now


@pytest.mark.parametrize(
    ("workers", "micro", "later"), [(0, None, 0), (2, None, 5), (2, 16, 2), (2, 20, 2), (2, 30, 3)]
)
def test_a_change_holds_when_all_that_workers_can_have_begun_is_over(
    workers: int, micro: int | None, later: int
) -> None:
    """Each of two workers has two batches ahead, of an equal share of 64 samples; an epoch's last step may have one."""
    group = Group(always(1, 0.5), Batching(total=SAMPLES, micro=micro, sharing="free"), workers).run(20)
    assert next(step for step, bounds in enumerate(group.divisions) if bounds) == FIRST_CHANGE + later


FIRST_CHANGE = 2 + 2 * WINDOW
"""The first step's time does not count, and each is known a step later."""


def test_a_change_is_refined_for_a_smaller_gain() -> None:
    group = Group(always(1, 1, 1, 0.5), fixed_s=0.2).run(40)
    first, refined = list(dict.fromkeys(bounds for bounds in group.divisions if bounds))
    assert group.divisions.index(refined) - group.divisions.index(first) == FIRST_CHANGE
    saved = 1 - group.slowest[-1] / group.slowest[FIRST_CHANGE]
    assert REFINED_GAIN < saved < LEAST_GAIN


def test_groups_of_thousands_of_ranks_divide_evenly() -> None:
    batches = batches_of(Batching(total=2 * MOST_TIMED, sharing="free"))
    one = Shares()
    one.made = lambda: batches
    for ranks, divides in ((8192, True), (8193, False)):
        one.group_begins(0, 0, [holding(weight=1 + rank % 3, freedom=2) for rank in range(ranks)])
        assert bool(one.bounds(0)) == divides


def test_a_group_of_fewer_samples_than_ranks_divides_evenly() -> None:
    group = Group(always(*[1.0] * 4 + [0.1] * 4), Batching(total=6))
    group.run(40)
    assert group.ranks[0].bounds(40) == ()


def test_a_newcomer_s_hello_has_no_weight() -> None:
    assert Shares().hello() == (0, 0, 0, 0)
    assert Group(always(1, 1)).ranks[0].hello() == (1 << 20, 2, 0, 0)
