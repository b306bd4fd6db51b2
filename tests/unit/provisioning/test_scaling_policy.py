"""How many pilots to keep: decisions from situations, nothing else."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilot.provisioning.retry import LONGEST_PAUSE_S, Retry
from pilot.provisioning.scaling_policy import (
    BOUND_FACTOR,
    BOUND_SLACK,
    SUBMISSIONS_PER_POLL,
    Scaling,
    ScalingJob,
    Situation,
    decide,
    fitting_walltime_s,
)
from pilot.provisioning.scheduler import JobPhase
from pilot.site.site import Site
from tests import golden

SITE = Site(name="x", scheduler="slurm", walltime="02:00:00", walltime_min="00:10:00")
HOUR_S = 3600.0
FULL_S = 2 * HOUR_S


def pending(*jobs: str, walltime_s: float = FULL_S, since_s: float = 0) -> list[ScalingJob]:
    return [ScalingJob(job, JobPhase.PENDING, since_s, walltime_s) for job in jobs]


def running(*jobs: str, spare: bool = False, leaving: bool = False) -> list[ScalingJob]:
    return [ScalingJob(job, JobPhase.RUNNING, 0, FULL_S, leaving, spare) for job in jobs]


def decision(wanted: int, jobs: Sequence[ScalingJob] = (), site: Site = SITE, **known: float) -> Scaling:
    return decide(site, Situation(0, wanted, jobs, **known))


def test_what_is_wanted_and_not_there_is_submitted() -> None:
    assert decision(3, running("a")) == Scaling(submit=(FULL_S, FULL_S))


def test_what_is_pending_counts() -> None:
    assert decision(3, running("a") + pending("b", "c")) == Scaling()


def test_a_leaving_pilot_is_replaced() -> None:
    assert decision(2, running("a") + running("b", leaving=True)) == Scaling(submit=(FULL_S,))


def test_jobs_of_several_nodes() -> None:
    site = SITE.replace(nodes_per_pilot=4, launcher="srun")
    assert len(decision(9, running("a"), site).submit) == 2


def test_pending_jobs_are_cancelled_before_running_ones_and_the_newest_first() -> None:
    jobs = running("r", spare=True) + pending("old", since_s=1) + pending("new", since_s=2)
    assert decision(2, jobs).cancel == ("new",)
    assert decision(1, jobs).cancel == ("new", "old")
    assert decision(0, jobs).cancel == ("new", "old", "r")


def test_a_running_job_with_work_is_never_cancelled() -> None:
    assert decision(0, running("busy") + running("idle", spare=True)).cancel == ("idle",)


def test_the_cap_counts_our_jobs_that_leave_too() -> None:
    site = SITE.replace(max_jobs=3)
    found = decision(5, running("a") + running("b", leaving=True), site)
    assert len(found.submit) == 1
    assert found.held_back == "the site allows 3 jobs per user: 2 are ours, 0 others'"


def test_a_shared_cap_counts_the_jobs_of_others() -> None:
    site = SITE.replace(max_jobs=20, max_jobs_scope="project")
    found = decision(6, pending("a"), site, others=17)
    assert len(found.submit) == 2
    assert found.held_back == "the site allows 20 jobs per project: 1 are ours, 17 others'"
    assert decision(6, pending("a"), site, others=25).submit == ()


def test_nothing_is_submitted_in_a_pause_after_failures() -> None:
    found = decision(2, resume_s=12.0)
    assert (found.submit, found.held_back) == ((), "waiting 12 s after failures")
    assert decision(0, running("a", spare=True), resume_s=12.0).cancel == ("a",)


def test_what_another_job_takes_from_us_is_not_replaced_yet_and_the_rest_is() -> None:
    found = decision(1, running("a", leaving=True), yielding=1)
    assert (found.submit, found.held_back) == ((), "waiting while another job takes nodes")
    assert decision(1, running("a"), yielding=1) == Scaling()
    found = decision(5, running("a", leaving=True), yielding=2)
    assert len(found.submit) == 3
    assert found.held_back == "waiting while another job takes nodes"


def test_no_more_jobs_than_twice_those_that_are_wanted_may_be_there() -> None:
    stuck = [job for name in range(20) for job in running(str(name), leaving=True)]
    found = decision(10, stuck)
    assert len(found.submit) == BOUND_FACTOR * 10 + BOUND_SLACK - 20
    assert found.held_back == "20 jobs may still exist; submitting at most 22 until that is known"


def test_submissions_have_a_rate() -> None:
    found = decision(80)
    assert len(found.submit) == SUBMISSIONS_PER_POLL
    assert found.held_back == "at most 30 submissions per 30 s"
    assert len(decision(80, submitted=SUBMISSIONS_PER_POLL - 2).submit) == 2


def test_ten_trainers_of_the_default_size_do_not_want_more_than_a_site_allows() -> None:
    there = pending(*map(str, range(90)))
    found = decision(640, there)
    assert len(found.submit) == 10
    assert found.held_back == "the site allows 100 jobs per user: 90 are ours, 0 others'"


def test_planned_nodes_get_pilots_that_fit_before_the_other_job_starts() -> None:
    found = decision(3, idle_nodes=1, planned_nodes=5, window_s=31 * 60.0)
    assert found.submit == (30 * 60.0, 30 * 60.0, FULL_S)


def test_planned_nodes_are_not_worth_a_pilot_within_its_warm_up() -> None:
    assert decision(1, planned_nodes=5, window_s=15 * 60.0).submit == (14 * 60.0,)
    assert decision(1, planned_nodes=5, window_s=15 * 60.0, warm_up_s=840.5).submit == (FULL_S,)
    assert decision(1, planned_nodes=5, window_s=9 * 60.0).submit == (FULL_S,)


def test_a_site_without_a_least_wall_time_never_asks_for_less() -> None:
    site = SITE.replace(walltime_min=None)
    assert decision(1, site=site, planned_nodes=5, window_s=HOUR_S).submit == (FULL_S,)


def test_a_long_job_that_waits_makes_room_for_one_that_fits() -> None:
    first = decision(2, pending("a", "b"), planned_nodes=1, window_s=31 * 60.0)
    assert first == Scaling(cancel=("a",))
    left = [ScalingJob("a", JobPhase.PENDING, 0, FULL_S, leaving=True), *pending("b")]
    assert decision(2, left, planned_nodes=1, window_s=31 * 60.0).submit == (30 * 60.0,)
    fitting = pending("b") + pending("c", walltime_s=30 * 60.0)
    assert decision(2, fitting, planned_nodes=1, window_s=31 * 60.0) == Scaling()


def test_long_jobs_make_room_newest_first_and_only_for_as_many_as_the_planned_nodes_take() -> None:
    waiting = pending("old", since_s=1) + pending("new", since_s=2) + pending("newer", since_s=3)
    assert decision(3, waiting, planned_nodes=2, window_s=31 * 60.0) == Scaling(cancel=("newer", "new"))
    found = decision(4, waiting, planned_nodes=2, window_s=31 * 60.0)
    assert found == Scaling(submit=(30 * 60.0,), cancel=("newer",))


def test_nothing_makes_room_while_nothing_may_be_submitted() -> None:
    found = decision(2, pending("a", "b"), planned_nodes=1, window_s=31 * 60.0, resume_s=12.0)
    assert found == Scaling(held_back="waiting 12 s after failures")


def test_jobs_that_will_start_on_idle_nodes_are_left_alone() -> None:
    assert decision(2, pending("a", "b"), idle_nodes=2, planned_nodes=3, window_s=HOUR_S) == Scaling()


@pytest.mark.parametrize(("window_s", "fits_s"), [(3600.0, 3540.0), (3659.0, 3540.0), (659.0, None), (9000.0, None)])
def test_a_fitting_wall_time_is_whole_minutes_with_a_margin(window_s: float, fits_s: float | None) -> None:
    assert fitting_walltime_s(SITE, Situation(0, 1, (), planned_nodes=1, window_s=window_s)) == fits_s


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


def test_attempts_are_made_at_ever_longer_intervals() -> None:
    retry, at_s = Retry(), []
    for now_s in range(2000):
        if retry.due(now_s):
            at_s.append(now_s)
            retry.tried(now_s, 2)
    assert at_s == [0, 2, 6, 14, 30, 62, 126, 254, 510, 1022, 1622]


def any_situation(rng: random.Random) -> Situation:
    phases = (JobPhase.PENDING, JobPhase.RUNNING, JobPhase.SUSPENDED)
    jobs = [
        ScalingJob(f"j{number}", rng.choice(phases), rng.randrange(9), rng.choice((600.0, 1200.0, FULL_S)),
             leaving=rng.random() < 0.2, spare=rng.random() < 0.4)
        for number in range(rng.randrange(12))
    ]  # fmt: skip
    return Situation(
        now_s=100.0, wanted_nodes=rng.randrange(30), jobs=jobs, others=rng.randrange(3),
        idle_nodes=rng.choice((None, 0, 2, 5)), planned_nodes=rng.choice((0, 1, 4, 9)),
        window_s=rng.choice((None, 90.0, 700.0, 1300.0, 1390.0, FULL_S, 2 * FULL_S)),
        warm_up_s=rng.choice((0.0, 660.0)),
        resume_s=rng.choice((0.0, 0.0, 0.0, 100.0, 130.4)), yielding=rng.choice((0, 0, 1, 3)),
        submitted=rng.choice((0, 0, 5, SUBMISSIONS_PER_POLL - 1)),
    )  # fmt: skip


def test_what_is_decided_changes_only_when_it_is_meant_to() -> None:
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
