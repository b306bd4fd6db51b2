"""Slurm's answers, recorded."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

import pytest

from pilot.core.errors import SubmitError
from pilot.host.commands import CommandRefused
from pilot.provisioning.scheduler import JobEnd, JobPhase
from pilot.provisioning.scheduler_slurm import SlurmQueue, excluded
from pilot.site.site import Site
from tests.unit.provisioning.recordings import PREFIX, Recorded, text

SITE = Site(name="x", scheduler="slurm", partition="preempt", account="abc", max_jobs=20)
NOW_S = 1795172720.0
PLANNED = "20|2026-11-20T11:05:27|(null)\n21|2026-11-20T11:35:00|n[1-3]\n18|2026-11-20T11:05:20|n1\n30|N/A|n1\n"
"""Pending jobs of all users; 18 is ours."""
SINFO = "n1 alloc\nn2 idle\nn3 plnd\nn4 plnd\nn5 idle~\nn6 down*\n"


@pytest.fixture(autouse=True)
def recorded_in_utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The recording's times are UTC; squeue's are local."""
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def squeue(command: Sequence[str]) -> str:
    if "-A" in command:
        return "12\n21\n22\n23\n"
    return PLANNED if "PD" in command else text("squeue-22.05.txt")


def recorded(**changes: object) -> Recorded:
    answers: dict[str, object] = {"squeue": squeue, "sinfo": SINFO, "sacct": ""}
    return Recorded(answers | changes)


def queue(run: Recorded, site: Site = SITE) -> SlurmQueue:
    return SlurmQueue(site, PREFIX, run, user="ada")


def test_every_state_is_read() -> None:
    jobs = queue(recorded()).poll([], NOW_S).jobs
    assert {job: (view.phase, view.ending) for job, view in jobs.items()} == {
        "11": (JobPhase.RUNNING, None),
        "12": (JobPhase.RUNNING, None),
        "13": (JobPhase.OVER, JobEnd.FAILED),
        "14": (JobPhase.OVER, JobEnd.COMPLETED),
        "15": (JobPhase.OVER, JobEnd.WALLTIME),
        "16": (JobPhase.OVER, JobEnd.NODE_FAILED),
        "17": (JobPhase.OVER, JobEnd.CANCELLED),
        "18": (JobPhase.PENDING, None),
        "19": (JobPhase.RUNNING, None),
        "23": (JobPhase.SUSPENDED, None),
    }


def test_the_facts_of_each_job_are_read() -> None:
    jobs = queue(recorded()).poll(["22", "24"], NOW_S).jobs
    assert (jobs["11"].preempt_s, jobs["11"].end_s) == (1795172720.0, 1795172740.0)
    assert (jobs["12"].preempt_s is None, jobs["14"].preempt_s is None) == (True, False), "known after it has left, too"
    assert (jobs["18"].restart, jobs["18"].detail) == (1, "PENDING, BeginTime"), "it was requeued"
    limits = {job: jobs[job].walltime_s for job in ("11", "12", "18", "23")}
    assert limits == {"11": None, "12": 86400 + 1800, "18": 600, "23": 3600}
    assert (jobs["22"].name, jobs["24"].name) == ("mine, by hand", "a|b"), "a requested job, whatever its name"


@pytest.mark.parametrize(("scope", "others"), [("user", 1), ("project", 2)])
def test_jobs_of_others_that_count_against_the_cap(scope: str, others: int) -> None:
    site = SITE.replace(max_jobs_scope=scope)
    assert queue(recorded(), site).poll([], NOW_S).others == others


def test_planned_nodes_and_their_window() -> None:
    shown = queue(recorded()).poll([], NOW_S)
    assert (shown.idle_nodes, shown.planned_nodes) == (1, 2)
    assert shown.window_s == 1795172727 - NOW_S
    assert queue(recorded(sinfo="n1 idle\n")).poll([], NOW_S).window_s is None


def test_a_job_planned_on_the_nodes_of_a_running_one_is_shown_with_it() -> None:
    jobs = queue(recorded()).poll([], NOW_S).jobs
    assert {job for job, view in jobs.items() if view.planned_s is not None} == {"11", "12", "19"}
    assert {view.planned_s for view in jobs.values()} == {None, 1795174500.0}


def test_one_squeue_for_our_jobs_one_for_pending_jobs_and_one_sinfo() -> None:
    run = recorded(sinfo="n1 idle\n")
    queue(run).poll([str(job) for job in range(11, 20)], NOW_S)
    assert (run.times("squeue"), run.times("sinfo"), run.times("sacct")) == (2, 1, 0)
    assert run.asked[0][:6] == ["squeue", "-h", "-t", "all", "-u", "ada"]


def test_accounting_is_asked_once_for_all_jobs_that_squeue_forgot() -> None:
    run = recorded(sacct="7|PREEMPTED|0|n3\n8|CANCELLED by 1000|0|n4\n9|RUNNING|1|n5\n")
    jobs = queue(run).poll(["7", "8", "9", "10"], NOW_S).jobs
    assert (jobs["7"].ending, jobs["8"].ending) == (JobEnd.PREEMPTED, JobEnd.CANCELLED)
    assert (jobs["9"].phase, jobs["9"].restart) == (JobPhase.RUNNING, 1)
    assert "10" not in jobs
    assert run.times("sacct") == 1


def test_a_command_that_does_not_answer() -> None:
    silent = SubmitError("it did not answer within 30 s")
    with pytest.raises(SubmitError, match="did not answer"):
        queue(recorded(squeue=silent)).poll([], NOW_S)
    assert "7" not in queue(recorded(sacct=silent)).poll(["7"], NOW_S).jobs, "there may be no accounting"
    shown = queue(recorded(sinfo=silent)).poll([], NOW_S)
    assert (shown.trouble, shown.idle_nodes, len(shown.jobs)) == (str(silent), None, 10)


@pytest.mark.parametrize("answer", ["[]", '{"jobs": 3}', "slurm_load_jobs error"])
def test_an_answer_that_cannot_be_read_is_an_error(answer: str) -> None:
    with pytest.raises(SubmitError, match="cannot parse"):
        queue(recorded(squeue=answer)).poll([], NOW_S)


def test_an_unknown_state_is_alive() -> None:
    run = recorded(squeue=text("squeue-22.05.txt").replace("CANCELLED", "SOMETHING_NEW"))
    assert queue(run).poll([], NOW_S).jobs["17"].phase is JobPhase.RUNNING


def test_kill_names_the_jobs() -> None:
    run = recorded(scancel="")
    queue(run).kill(["11", "12"])
    assert run.asked == [["scancel", "--full", "--signal=KILL", "11", "12"]]


def test_jobs_are_cancelled_in_batches_and_one_that_is_over_already_counts_as_cancelled() -> None:
    def scancel(command: Sequence[str]) -> str:
        if "7" in command:
            raise CommandRefused("scancel", "scancel: error: Kill job error on job id 7: Invalid job id specified\n")
        if "108" in command:
            raise CommandRefused("scancel", "scancel: error: Kill job error on job id 108: Access/permission denied\n")
        return ""

    run = recorded(scancel=scancel)
    jobs = [str(number) for number in range(250)]
    assert queue(run).cancel(jobs) == [job for job in jobs if job != "108"]
    assert run.times("scancel") == 3
    refused = CommandRefused("scancel", "scancel: error: Unable to contact slurm controller")
    assert queue(recorded(scancel=refused)).cancel(["11", "12"]) == []


def test_nodes_that_are_not_ours_are_excluded_and_not_counted_as_idle() -> None:
    few = SITE.replace(only_nodes="n[1-2]")
    shown = queue(recorded(), few).poll([], NOW_S)
    assert (shown.idle_nodes, shown.planned_nodes) == (1, 0)
    run = recorded(sinfo="n1\nn2\nn3\nn4\nn4\n", scontrol=lambda command: f"<{command[-1]}>\n")
    assert excluded(few, run) == "<n3,n4>"
    assert excluded(SITE.replace(only_nodes="n*"), run) == ""
    with pytest.raises(SubmitError, match=r"no node of partition preempt matches --only-nodes m\*"):
        excluded(SITE.replace(only_nodes="m*"), run)
