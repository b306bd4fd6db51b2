"""LSF's answers, according to its documentation (LSF itself was not run)."""

from __future__ import annotations

import time

import pytest

from pilot.core.errors import SubmitError
from pilot.provisioning.scheduler import JobEnd, JobPhase
from pilot.provisioning.scheduler_lsf import LsfQueue
from pilot.site.site import Site
from tests.unit.provisioning.recordings import PREFIX, Recorded, text

SITE = Site(name="x", scheduler="lsf", queue="killable", account="ABC123", max_jobs_scope="project")


def queue(run: Recorded, site: Site = SITE) -> LsfQueue:
    return LsfQueue(site, PREFIX, run, user="ada")


def recorded() -> Recorded:
    return Recorded({"bjobs": text("bjobs-10.1.json"), "bkill": ""})


def test_every_state_is_read() -> None:
    jobs = queue(recorded()).poll([], 0).jobs
    assert {job: (view.phase, view.ending) for job, view in jobs.items()} == {
        "201": (JobPhase.RUNNING, None),
        "202": (JobPhase.PENDING, None),
        "203": (JobPhase.OVER, JobEnd.COMPLETED),
        "204": (JobPhase.OVER, JobEnd.PREEMPTED),
        "205": (JobPhase.OVER, JobEnd.WALLTIME),
        "206": (JobPhase.OVER, JobEnd.CANCELLED),
        "207": (JobPhase.OVER, JobEnd.FAILED),
        "208": (JobPhase.OVER, JobEnd.GONE),
        "209": (JobPhase.OVER, JobEnd.NODE_FAILED),
        "210": (JobPhase.RUNNING, None),
        "213": (JobPhase.SUSPENDED, None),
    }


@pytest.mark.parametrize(
    ("now", "finishes", "ends"),
    [
        ("2026-06-01 10:00", "Jun  1 12:30 L", "2026-06-01 12:30"),
        ("2026-12-31 23:50", "Jan  1 01:10 L", "2027-01-01 01:10"),
        ("2027-01-01 00:10", "Dec 31 23:59 L", "2026-12-31 23:59"),
        ("2028-02-28 23:50", "Feb 29 01:10 L", "2028-02-29 01:10"),
        ("2026-06-01 10:00", "Jun  1 12:30 E", None),
        ("2026-06-01 10:00", "Jun  1 12:30", None),
        ("2026-06-01 10:00", "-", None),
        ("2026-06-01 10:00", "Jux 99 L", None),
    ],
)
def test_a_run_limit_says_when_a_running_job_ends(now: str, finishes: str, ends: str | None) -> None:
    """In local time without a year; an estimated run time ends nothing."""
    row = '{"JOBID": "%s", "STAT": "%s", "USER": "ada", "JOB_NAME": "' + PREFIX + '.x", "FINISH_TIME": "%s"}'
    rows = ", ".join(row % (job, stat, finishes) for job, stat in (("1", "RUN"), ("2", "PEND"), ("3", "DONE")))
    jobs = queue(Recorded({"bjobs": f'{{"RECORDS": [{rows}]}}'})).poll([], _unix_s(now)).jobs
    assert [jobs[job].end_s for job in "123"] == [ends and _unix_s(ends), None, None]


def _unix_s(text: str) -> float:
    return time.mktime(time.strptime(text, "%Y-%m-%d %H:%M"))


def test_one_question_for_everything() -> None:
    run = recorded()
    queue(run).poll(["201", "202"], 0)
    (command,) = run.asked
    assert command[:9] == ["bjobs", "-a", "-u", "all", "-P", "ABC123", "-q", "killable", "-json"]


def test_a_cap_per_user_asks_for_ones_own_jobs_only() -> None:
    run = recorded()
    queue(run, SITE.replace(max_jobs_scope="user")).poll([], 0)
    assert "-u" not in run.asked[0]


def test_jobs_of_others_that_count_against_the_cap() -> None:
    assert queue(recorded()).poll([], 0).others == 2


def test_no_jobs_at_all_is_no_error() -> None:
    run = Recorded({"bjobs": SubmitError("bjobs failed: No job found in queue killable")})
    assert queue(run).poll([], 0).jobs == {}


@pytest.mark.parametrize("answer", ["", "{}", '{"RECORDS": 3}'])
def test_an_answer_that_cannot_be_read_is_an_error(answer: str) -> None:
    with pytest.raises(SubmitError, match="cannot parse"):
        queue(Recorded({"bjobs": answer})).poll([], 0)


def test_a_server_that_does_not_answer_is_an_error() -> None:
    with pytest.raises(SubmitError, match="Cannot connect"):
        queue(Recorded({"bjobs": SubmitError("bjobs failed: Cannot connect to LSF")})).poll([], 0)


def test_kill_names_the_jobs() -> None:
    run = recorded()
    queue(run).kill(["201"])
    assert run.asked == [["bkill", "-r", "201"]]
