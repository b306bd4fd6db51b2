from __future__ import annotations

import math
from dataclasses import replace
from math import sqrt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilot.core.commands import SetCheckpointInterval
from pilot.core.config import CoordinatorConfig
from pilot.core.coordinator import Coordinator
from pilot.core.events import (
    CheckpointPublished,
    Event,
    GroupFormed,
    PlanReady,
    PoolChanged,
    Progress,
    TrainerSubmitted,
    WorkerReady,
)
from pilot.core.ids import Generation, NodeId, PlanId, TrainerId
from pilot.core.plan.problem import Plan, PlanStatus
from pilot.core.trainer.checkpoint_interval import LEAST_S, MOST_WRITING, CheckpointInterval, adjust_interval
from pilot.core.trainer.spec import TrainerSpec

HOUR_S = 3600.0
NO_GRACE = CheckpointInterval(site_interval_s=300.0, grace_s=0.0, write_s=0.5, trained_s=10 * HOUR_S, wipeouts=9)
T = TrainerId("t")
A, B, C = NodeId("a"), NodeId("b"), NodeId("c")


def test_without_grace_it_is_youngs_interval() -> None:
    assert NO_GRACE.mean_time_between_s == HOUR_S
    assert NO_GRACE.interval_s == pytest.approx(sqrt(2 * 0.5 * HOUR_S))


def test_a_checkpoint_that_fits_into_the_grace_leaves_the_sites_interval() -> None:
    assert replace(NO_GRACE, grace_s=2.5).interval_s == 300.0
    assert replace(NO_GRACE, grace_s=2.49).interval_s < 300.0
    assert replace(NO_GRACE, write_s=None).interval_s == 300.0


def test_it_keeps_its_bounds() -> None:
    assert replace(NO_GRACE, wipeouts=0, trained_s=1e9).interval_s == 300.0
    assert replace(NO_GRACE, trained_s=0.0, write_s=0.1).interval_s == 5.0
    assert replace(NO_GRACE, trained_s=0.0, write_s=20.0).interval_s == 200.0, "a tenth of the time"
    assert replace(NO_GRACE, trained_s=0.0, site_interval_s=1.0).interval_s == 1.0


@pytest.mark.parametrize(
    ("its", "reason"),
    [
        (replace(NO_GRACE, write_s=None), "the site's interval, until it is known how long writing takes"),
        (
            replace(NO_GRACE, grace_s=30.0),
            "writing takes 0.5 s, which fits into the grace period of 30 s, so the site's interval holds",
        ),
        (
            replace(NO_GRACE, trained_s=3600.0, wipeouts=1),
            "writing takes 0.5 s, too long for the grace period of 0 s, and in 1.0 h of training it lost all its "
            "nodes once (Young/Daly)",
        ),
        (
            replace(NO_GRACE, trained_s=3599.0, wipeouts=2),
            "writing takes 0.5 s, too long for the grace period of 0 s, and in 3599 s of training it lost all its "
            "nodes 2 times (Young/Daly)",
        ),
    ],
)
def test_the_reason_has_the_measurements(its: CheckpointInterval, reason: str) -> None:
    assert its.reason() == reason


LEAVES = replace(NO_GRACE, write_s=20.0, end_in_s=100.0)


def test_the_last_checkpoint_is_complete_before_all_nodes_leave() -> None:
    """Its leader writes once as much time has passed since the last checkpoint as is left until writing must begin."""
    now_s, written_s = 0.0, -300.0
    while now_s < 100.0:
        due_s = written_s + replace(LEAVES, end_in_s=100.0 - now_s).interval_s
        if due_s <= now_s and now_s + 20.0 <= 100.0:
            written_s = now_s
        now_s += 1.0
    assert 100.0 - 2 * (LEAST_S + 2.0) - 20.0 <= written_s <= 80.0
    assert LEAVES.reason() == "writing takes 20 s, too long for the grace of 0 s, and its nodes leave in 100 s"
    assert replace(LEAVES, grace_s=30.0).interval_s == 300.0, "after the notice there is time"
    assert replace(LEAVES, end_in_s=1e4).interval_s == replace(LEAVES, end_in_s=math.inf).interval_s


def test_the_last_of_a_trainers_nodes_to_leave_decides() -> None:
    core = trains_on(A, B)
    core.handle(10.0, PoolChanged(ends=((A, 60.0),)))
    assert core.checkpoint_interval(core.trainers[T]).end_in_s == math.inf
    core.handle(10.0, PoolChanged(ends=((B, 90.0),)))
    assert core.checkpoint_interval(core.trainers[T]).end_in_s == 80.0
    commands = core.handle(20.0, CheckpointPublished(T, 0, 20.0)) + core.handle(
        30.0, Progress(T, Generation(1), 1, 0, 32)
    )
    assert [command.interval_s for command in commands if isinstance(command, SetCheckpointInterval)] == [48.0, 38.0]
    core.handle(95.0, Progress(T, Generation(1), 2, 0, 64))
    assert core.checkpoint_interval(core.trainers[T]).end_in_s == 0.0, "it should have left by now"
    core.handle(95.0, PoolChanged(ends=((B, None),)))
    assert core.checkpoint_interval(core.trainers[T]).end_in_s == math.inf


SECONDS = st.floats(0.0, 1e7, allow_nan=False)
INTERVALS = st.builds(
    CheckpointInterval, st.floats(0.1, 1e5), SECONDS, st.none() | SECONDS, SECONDS, st.integers(0, 10_000)
)


@given(INTERVALS)
def test_any_interval_is_at_most_the_sites_and_not_too_short(its: CheckpointInterval) -> None:
    assert min(LEAST_S, its.site_interval_s) <= its.interval_s <= its.site_interval_s
    assert its.fits or its.interval_s >= min(its.site_interval_s, (its.write_s or 0.0) / MOST_WRITING)
    assert "e+" not in its.sentence().partition(":")[0]


@given(INTERVALS, st.integers(0, 1000))
def test_more_losses_never_make_it_longer(its: CheckpointInterval, more: int) -> None:
    assert replace(its, wipeouts=its.wipeouts + more).interval_s <= its.interval_s


def trains_on(*nodes: NodeId) -> Coordinator:
    """A trainer on ``nodes`` since time 0, without grace."""
    core = Coordinator(CoordinatorConfig(grace_s=0.0))
    events: list[Event] = [PoolChanged(joined=nodes), TrainerSubmitted(TrainerSpec(T, 1, 4))]
    events += [PlanReady(PlanId(2), Plan(PlanStatus.OPTIMAL, ((T, len(nodes)),), 0.0))]
    events += [WorkerReady(T, node) for node in nodes]
    events += [GroupFormed(T, Generation(1), 0)]
    for event in events:
        core.handle(0.0, event)
    return core


@pytest.mark.parametrize(
    ("events", "count"),
    [
        ([PoolChanged(lost=(A, B))], 1),
        ([PoolChanged(noticed=(A, B)), PoolChanged(lost=(A, B))], 1),
        ([PoolChanged(noticed=(A,)), PoolChanged(lost=(B,))], 1),
        ([PoolChanged(lost=(A,)), PoolChanged(joined=(C,))], 0),
        ([PoolChanged(noticed=(A,)), PoolChanged(lost=(A,))], 0),
    ],
)
def test_a_loss_of_all_nodes_counts_once(events: list[PoolChanged], count: int) -> None:
    core = trains_on(A, B)
    for event in events:
        core.handle(HOUR_S, event)
    assert core.trainers[T].measured.wipeouts == count


def test_only_the_time_in_groups_counts() -> None:
    core = trains_on(A)
    core.handle(100.0, PoolChanged(lost=(A,)))
    core.handle(HOUR_S, PoolChanged(joined=(B,)))
    assert core.trainers[T].measured.trained_s(HOUR_S) == 100.0
    assert core.checkpoint_interval(core.trainers[T]).trained_s == 100.0


@pytest.mark.parametrize(
    ("current_s", "wanted_s", "changes"),
    [(100.0, 125.0, False), (125.0, 100.0, False), (100.0, 126.0, True), (126.0, 100.0, True), (None, 80.0, False)],
)
def test_the_leader_gets_an_interval_that_differs_by_more_than_a_quarter(
    current_s: float | None, wanted_s: float, changes: bool
) -> None:
    trainer = trains_on(A, B).trainers[T]
    trainer.workers[A].interval_s = current_s
    commands = adjust_interval(trainer, wanted := CheckpointInterval(wanted_s, 0.0, None, 0.0, 0))
    assert commands == ([SetCheckpointInterval(T, A, wanted_s, wanted.reason())] if changes else [])
    assert (trainer.workers[A].interval_s, trainer.workers[B].interval_s) == (wanted_s if changes else current_s, None)
    del trainer.workers[A]
    assert adjust_interval(trainer, NO_GRACE) == [], "its leader is gone"
