"""LSF's answers, according to its documentation (LSF itself was not run)."""

from __future__ import annotations

import time
from collections.abc import Sequence

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
    assert (jobs["201"].nodes, jobs["202"].nodes) == ({"h41n08"}, frozenset())


def test_the_nodes_of_a_job_on_several() -> None:
    row = f'{{"JOBID": "1", "STAT": "RUN", "USER": "ada", "JOB_NAME": "{PREFIX}.x", "EXEC_HOST": "42*h1:42*h2"}}'
    assert queue(Recorded({"bjobs": f'{{"RECORDS": [{row}]}}'})).poll([], 0).jobs["1"].nodes == {"h1", "h2"}


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
def test_a_run_limit_ends_a_running_job(now: str, finishes: str, ends: str | None) -> None:
    """In local time without a year; an estimated run time ends nothing."""
    row = '{"JOBID": "%s", "STAT": "%s", "USER": "ada", "JOB_NAME": "' + PREFIX + '.x", "FINISH_TIME": "%s"}'
    rows = ", ".join(row % (job, stat, finishes) for job, stat in (("1", "RUN"), ("2", "PEND"), ("3", "DONE")))
    jobs = queue(Recorded({"bjobs": f'{{"RECORDS": [{rows}]}}'})).poll([], _unix_s(now)).jobs
    assert [jobs[job].end_s for job in "123"] == [ends and _unix_s(ends), None, None]


def _unix_s(text: str) -> float:
    return time.mktime(time.strptime(text, "%Y-%m-%d %H:%M"))


ROW = '{"JOBID": "%s", "STAT": "PEND", "USER": "%s", "QUEUE": "%s", "JOB_NAME": "%s"}'


def test_our_jobs_are_found_in_any_queue_and_others_counted_in_ours() -> None:
    """Somebody may have switched ours to another queue, or another project."""
    ours, theirs = (f"{PREFIX}.1", "x")
    own = [("1", "ada", "killable", ours), ("2", "ada", "batch", ours), ("3", "ada", "killable", theirs)]
    everybodys = [own[0], own[2], ("4", "ada", "batch", theirs), ("5", "bob", "killable", theirs)]

    def bjobs(command: Sequence[str]) -> str:
        rows = everybodys if command[1:5] == ["-u", "all", "-P", "ABC123"] else own
        return f'{{"RECORDS": [{", ".join(ROW % row for row in rows)}]}}'

    run = Recorded({"bjobs": bjobs})
    for scope, others in (("user", 1), ("project", 2)):
        shown = queue(run, SITE.replace(max_jobs_scope=scope)).poll([], 0)
        assert (set(shown.jobs), shown.others) == ({"1", "2"}, others)
    assert [command[:3] for command in run.asked] == [["bjobs", "-a", "-json"]] * 2 + [["bjobs", "-u", "all"]]


def test_no_jobs_at_all_is_no_error() -> None:
    run = Recorded({"bjobs": SubmitError("bjobs failed: No job found in queue killable")})
    assert queue(run).poll([], 0).jobs == {}


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ("", "cannot parse"),
        ("{}", "cannot parse"),
        ('{"RECORDS": 3}', "cannot parse"),
        (SubmitError("bjobs failed: Cannot connect to LSF"), "Cannot connect"),
    ],
)
def test_no_answer_and_an_unreadable_one_are_errors(answer: str | SubmitError, message: str) -> None:
    with pytest.raises(SubmitError, match=message):
        queue(Recorded({"bjobs": answer})).poll([], 0)


def test_kill_names_the_jobs() -> None:
    run = recorded()
    queue(run).kill(["201"])
    assert run.asked == [["bkill", "-r", "201"]]
