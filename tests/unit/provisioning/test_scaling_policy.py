"""How many pilots to keep: decisions from situations, nothing else."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilot.provisioning.retry import LONGEST_PAUSE_S, Retry
from pilot.provisioning.scaling_policy import (
    SUBMISSIONS_PER_POLL,
    PoolDemand,
    Scaling,
    ScalingJob,
    decide,
    fitting_walltime_s,
)
from pilot.provisioning.scheduler import JobPhase, QueueSnapshot
from pilot.site.site import Site
from tests import golden

SITE = Site(name="x", scheduler="slurm", walltime="02:00:00", walltime_min="00:10:00")
HOUR_S = 3600.0
FULL_S = 2 * HOUR_S
SHARED = SITE.replace(max_jobs=20, max_jobs_scope="project")


def pending(*jobs: str, walltime_s: float = FULL_S, since_s: float = 0, leaving: bool = False) -> list[ScalingJob]:
    return [ScalingJob(job, JobPhase.PENDING, since_s, walltime_s, leaving) for job in jobs]


def running(*jobs: str, spare: bool = False, leaving: bool = False) -> list[ScalingJob]:
    return [ScalingJob(job, JobPhase.RUNNING, 0, FULL_S, leaving, spare) for job in jobs]


def test_a_held_job_is_replaced_and_the_newest_queued_one_goes_when_it_is_released() -> None:
    jobs = [ScalingJob("held", JobPhase.PENDING, 0, FULL_S, held=True), *running("a")]
    assert decide(SITE, situation(10, 2, jobs, {})) == Scaling((FULL_S,))
    jobs = [*pending("released"), *running("a"), *pending("newer", since_s=5)]
    assert decide(SITE, situation(10, 2, jobs, {})) == Scaling(cancel=("newer",))


def situation(now_s: float, wanted: int, jobs: Sequence[ScalingJob], known: Mapping[str, Any]) -> PoolDemand:
    queue = {name: value for name, value in known.items() if name in QueueSnapshot.__dataclass_fields__}
    rest = {name: value for name, value in known.items() if name not in queue}
    return PoolDemand(now_s, wanted, jobs, QueueSnapshot(**queue), **rest)


def decision(wanted: int, jobs: Sequence[ScalingJob] = (), site: Site = SITE, **known: Any) -> Scaling:
    return decide(site, situation(0, wanted, jobs, known))


BOTH = running("r", spare=True) + pending("old", since_s=1) + pending("new", since_s=2)
ONE_LEAVES = running("a") + running("b", leaving=True)
STUCK = running(*map(str, range(20)), leaving=True)
WAITING = pending("old", since_s=1) + pending("new", since_s=2) + pending("newer", since_s=3)
TAKEN, FAILED = "waiting while another job takes nodes", "waiting 12 s after failures"
HALF_H_S = 30 * 60.0
PLANNED = {"planned_nodes": 1, "window_s": 31 * 60.0}
QUARTER = {"planned_nodes": 5, "window_s": 15 * 60.0}


@pytest.mark.parametrize(
    ("wanted", "jobs", "known", "submitted", "cancelled", "held_back"),
    [
        (3, running("a"), {}, 2, (), ""),
        (3, running("a") + pending("b", "c"), {}, 0, (), ""),
        (2, ONE_LEAVES, {}, 1, (), ""),
        (9, running("a"), {"site": SITE.replace(nodes_per_pilot=4, launcher="srun")}, 2, (), ""),
        # Pending jobs go before running ones, and the newest first; a running job with work is never cancelled.
        (2, BOTH, {}, 0, ("new",), ""),
        (1, BOTH, {}, 0, ("new", "old"), ""),
        (0, BOTH, {}, 0, ("new", "old", "r"), ""),
        (0, running("busy") + running("idle", spare=True), {}, 0, ("idle",), ""),
        # The cap counts our jobs that leave, too, and others' where it is shared.
        (
            *(5, ONE_LEAVES, {"site": SITE.replace(max_jobs=3)}, 1, ()),
            "the site allows 3 jobs per user: 2 are ours, 0 others'",
        ),
        (
            *(6, pending("a"), {"site": SHARED, "others": 17}, 2, ()),
            "the site allows 20 jobs per project: 1 are ours, 17 others'",
        ),
        (
            *(6, pending("a"), {"site": SHARED, "others": 25}, 0, ()),
            "the site allows 20 jobs per project: 1 are ours, 25 others'",
        ),
        (
            *(640, pending(*map(str, range(90))), {}, 10, ()),
            "the site allows 100 jobs per user: 90 are ours, 0 others'",
        ),
        # After failures nothing is submitted for a while.
        (2, [], {"resume_s": 12.0}, 0, (), FAILED),
        (0, running("a", spare=True), {"resume_s": 12.0}, 0, ("a",), ""),
        # A node that another job takes from us is not replaced yet; others are.
        (1, running("a", leaving=True), {"yielding": 1}, 0, (), TAKEN),
        (1, running("a"), {"yielding": 1}, 0, (), ""),
        (5, running("a", leaving=True), {"yielding": 2}, 3, (), TAKEN),
        # The bound and the rate.
        (10, STUCK, {}, 2, (), "20 jobs may still exist; submitting at most 22 until that is known"),
        (80, [], {}, SUBMISSIONS_PER_POLL, (), "at most 30 submissions per 30 s"),
        (80, [], {"submitted": SUBMISSIONS_PER_POLL - 2}, 2, (), "at most 30 submissions per 30 s"),
    ],
)
def test_jobs_of_the_full_wall_time(
    wanted: int,
    jobs: list[ScalingJob],
    known: dict[str, Any],
    submitted: int,
    cancelled: tuple[str, ...],
    held_back: str,
) -> None:
    assert decision(wanted, jobs, **known) == Scaling((FULL_S,) * submitted, cancelled, held_back)


@pytest.mark.parametrize(
    ("wanted", "jobs", "known", "expected"),
    [
        # Planned nodes get pilots that fit before the other job starts,
        (
            *(3, [], {"idle_nodes": 1, "planned_nodes": 5, "window_s": 31 * 60.0}),
            Scaling((HALF_H_S, HALF_H_S, FULL_S)),
        ),
        (1, [], QUARTER, Scaling((14 * 60.0,))),
        # but not within their warm-up, nor below the site's least wall time, if it has one.
        (1, [], QUARTER | {"warm_up_s": 840.5}, Scaling((FULL_S,))),
        (1, [], {"planned_nodes": 5, "window_s": 9 * 60.0}, Scaling((FULL_S,))),
        (1, [], QUARTER | {"site": SITE.replace(walltime_min=None), "window_s": HOUR_S}, Scaling((FULL_S,))),
        # A long job that waits makes room for one that fits.
        (2, pending("a", "b"), PLANNED, Scaling(cancel=("a",))),
        (2, pending("a", leaving=True) + pending("b"), PLANNED, Scaling((HALF_H_S,))),
        (2, pending("b") + pending("c", walltime_s=HALF_H_S), PLANNED, Scaling()),
        # The newest ones do, as many as the planned nodes take, and only while something may be submitted.
        (3, WAITING, PLANNED | {"planned_nodes": 2}, Scaling(cancel=("newer", "new"))),
        (4, WAITING, PLANNED | {"planned_nodes": 2}, Scaling((HALF_H_S,), ("newer",))),
        (2, pending("a", "b"), PLANNED | {"resume_s": 12.0}, Scaling(held_back=FAILED)),
        # Jobs that will start on idle nodes stay.
        (2, pending("a", "b"), {"idle_nodes": 2, "planned_nodes": 3, "window_s": HOUR_S}, Scaling()),
    ],
)
def test_short_jobs_for_planned_nodes(
    wanted: int, jobs: list[ScalingJob], known: dict[str, Any], expected: Scaling
) -> None:
    assert decision(wanted, jobs, **known) == expected


@pytest.mark.parametrize(("window_s", "fits_s"), [(3600.0, 3540.0), (3659.0, 3540.0), (659.0, None), (9000.0, None)])
def test_a_fitting_wall_time_is_in_full_minutes_with_a_margin(window_s: float, fits_s: float | None) -> None:
    known = {"planned_nodes": 1, "window_s": window_s}
    assert fitting_walltime_s(SITE, situation(0, 1, (), known)) == fits_s


jobs_of = st.lists(
    st.builds(
        ScalingJob,
        st.uuids().map(str),
        st.sampled_from([JobPhase.PENDING, JobPhase.RUNNING]),
        st.floats(0, 100),
        st.sampled_from([600.0, FULL_S]),
        st.booleans(),
        st.booleans(),
    ),
    max_size=12,
)


@given(
    st.integers(0, 15), jobs_of, st.integers(1, 12), st.integers(0, 5), st.integers(0, 6), st.none() | st.floats(0, 1e4)
)
def test_no_decision_exceeds_the_cap_or_the_wish_or_kills_work(
    wanted: int, jobs: list[ScalingJob], cap: int, others: int, planned: int, window_s: float | None
) -> None:
    site = SITE.replace(max_jobs=cap)
    found = decision(wanted, jobs, site, others=others, planned_nodes=planned, window_s=window_s or 0.0)
    by_id = {job.job: job for job in jobs}
    living = [job for job in jobs if not job.leaving]
    assert not found.submit or len(jobs) + others + len(found.submit) <= cap
    assert not found.submit or len(living) + len(found.submit) <= wanted
    assert len(set(found.cancel)) == len(found.cancel)
    for job in found.cancel:
        assert not by_id[job].leaving
        assert by_id[job].phase is JobPhase.PENDING or by_id[job].spare


def test_pauses_double_up_to_a_limit_and_end_with_success() -> None:
    backoff = Retry()
    pauses = []
    for _ in range(8):
        backoff.tried(1000, 30)
        pauses.append(backoff.again_s - 1000)
    assert pauses[:4] == [30, 60, 120, 240]
    assert pauses[-1] == LONGEST_PAUSE_S
    backoff.worked()
    assert backoff.due(1000)
    backoff.tried(5000, 30)
    assert backoff.again_s == 5030


def any_situation(rng: random.Random) -> PoolDemand:
    phases = (JobPhase.PENDING, JobPhase.RUNNING, JobPhase.SUSPENDED)
    jobs = [
        ScalingJob(f"j{number}", rng.choice(phases), rng.randrange(9), rng.choice((600.0, 1200.0, FULL_S)),
             leaving=rng.random() < 0.2, spare=rng.random() < 0.4)
        for number in range(rng.randrange(12))
    ]  # fmt: skip
    wanted = rng.randrange(30)
    known = {
        "others": rng.randrange(3),
        "idle_nodes": rng.choice((None, 0, 2, 5)), "planned_nodes": rng.choice((0, 1, 4, 9)),
        "window_s": rng.choice((None, 90.0, 700.0, 1300.0, 1390.0, FULL_S, 2 * FULL_S)),
        "warm_up_s": rng.choice((0.0, 660.0)),
        "resume_s": rng.choice((0.0, 0.0, 0.0, 100.0, 130.4)), "yielding": rng.choice((0, 0, 1, 3)),
        "submitted": rng.choice((0, 0, 5, SUBMISSIONS_PER_POLL - 1)),
    }  # fmt: skip
    return situation(100.0, wanted, jobs, known)


def test_decisions_are_the_recorded_ones() -> None:
    sites = [
        SITE,
        SITE.replace(walltime_min=None, max_jobs=8),
        SITE.replace(nodes_per_pilot=2, launcher="srun", max_jobs=6, max_jobs_scope="project"),
    ]
    cases = []
    for number, site in enumerate(sites):
        for seed in range(20):
            rng = random.Random(100 * number + seed)
            cases.append((f"site {number}, seed {seed}", [decide(site, any_situation(rng)) for _ in range(50)]))
    golden.check("scaling.digests", golden.digests(cases))
