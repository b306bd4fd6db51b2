from __future__ import annotations

from dataclasses import replace
from math import sqrt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilot.core.config import CoordinatorConfig
from pilot.core.coordinator import Coordinator
from pilot.core.events import (
    CheckpointPublished,
    Event,
    GroupFormed,
    PlanReady,
    PoolChanged,
    TrainerSubmitted,
    WorkerReady,
)
from pilot.core.ids import Generation, NodeId, PlanId, TrainerId
from pilot.core.pacing import LEAST_S, MARGIN_S, MOST_WRITING, Pace
from pilot.core.problem import Plan, PlanStatus
from pilot.core.spec import TrainerSpec

HOUR_S = 3600.0
NO_GRACE = Pace(site_interval_s=300.0, grace_s=0.0, write_s=0.5, trained_s=10 * HOUR_S, wipeouts=9)
T = TrainerId("t")
A, B, C = NodeId("a"), NodeId("b"), NodeId("c")


def test_without_grace_it_is_youngs_interval() -> None:
    assert NO_GRACE.mean_time_between_s == HOUR_S
    assert NO_GRACE.interval_s == pytest.approx(sqrt(2 * 0.5 * HOUR_S))


def test_what_fits_into_the_grace_leaves_the_sites_interval() -> None:
    assert replace(NO_GRACE, grace_s=0.5 + MARGIN_S).interval_s == 300.0
    assert replace(NO_GRACE, grace_s=0.49 + MARGIN_S).interval_s < 300.0
    assert replace(NO_GRACE, write_s=None).interval_s == 300.0


def test_it_keeps_its_bounds() -> None:
    assert replace(NO_GRACE, wipeouts=0, trained_s=1e9).interval_s == 300.0
    assert replace(NO_GRACE, trained_s=0.0, write_s=0.1).interval_s == LEAST_S
    assert replace(NO_GRACE, trained_s=0.0, write_s=20.0).interval_s == 20.0 / MOST_WRITING
    assert replace(NO_GRACE, trained_s=0.0, site_interval_s=1.0).interval_s == 1.0


SECONDS = st.floats(0.0, 1e7, allow_nan=False)
PACES = st.builds(Pace, st.floats(0.1, 1e5), SECONDS, st.none() | SECONDS, SECONDS, st.integers(0, 10_000))


@given(PACES)
def test_whatever_was_measured_it_is_at_most_the_sites_and_not_too_short(pace: Pace) -> None:
    assert min(LEAST_S, pace.site_interval_s) <= pace.interval_s <= pace.site_interval_s
    assert pace.fits or pace.interval_s >= min(pace.site_interval_s, (pace.write_s or 0.0) / MOST_WRITING)
    assert f"every {pace.interval_s:.3g} s" in pace.sentence()


@given(PACES, st.integers(0, 1000))
def test_more_losses_never_make_it_longer(pace: Pace, more: int) -> None:
    assert replace(pace, wipeouts=pace.wipeouts + more).interval_s <= pace.interval_s


def trains_on(*nodes: NodeId) -> Coordinator:
    """A trainer on ``nodes`` since the time 0, without grace."""
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
        ([PoolChanged(leaving=(A, B)), PoolChanged(lost=(A, B))], 1),
        ([PoolChanged(leaving=(A,)), PoolChanged(lost=(B,))], 1),
        ([PoolChanged(lost=(A,)), PoolChanged(joined=(C,))], 0),
        ([PoolChanged(leaving=(A,)), PoolChanged(lost=(A,))], 0),
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
    assert core.pace_of(core.trainers[T]).trained_s == 100.0


def test_small_changes_are_not_told() -> None:
    core = trains_on(A)
    assert core.handle(HOUR_S, CheckpointPublished(T, 1, 1.0)) != []
    assert core.handle(1.2 * HOUR_S, CheckpointPublished(T, 2, 1.0)) == []
    assert core.handle(3 * HOUR_S, CheckpointPublished(T, 3, 1.0)) != []
