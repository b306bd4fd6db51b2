"""Provider, keeper and queries against a real OpenPBS, with a trivial agent: jobs and queues, no training."""

from __future__ import annotations

import asyncio
import shlex
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pilot.doctor import queue_checks
from pilot.doctor.finding import Grade
from pilot.provisioning import job_record
from pilot.provisioning.keeper import Keeper, pool_name
from pilot.provisioning.scheduler import JobEnd
from pilot.provisioning.scheduler_pbs import PbsQueue
from pilot.site.site import Site, walltime_seconds
from tests.crew import Crew, play, with_crew
from tests.pbs.lab import CPUS, NODES, Lab, options
from tests.slurm.lab import wait_for

# In Python, like the agent: the shell above a pilot's script ignores TERM, so a shell below it could not trap it.
AGENT = "import signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: sys.exit(0)); time.sleep(1e6)"
POLITE = shlex.join([sys.executable, "-c", AGENT])
STUBBORN = POLITE.replace("sys.exit(0)", "0")
SITE = Site(name="pbs", scheduler="pbspro", queue="preemptable", cores_per_node=CPUS, poll_s=1, command_timeout_s=10)


@pytest.fixture
def history(lab: Lab) -> Iterator[None]:
    """The server keeps a job history."""
    lab.qmgr("set server job_history_enable=True")
    yield
    lab.qmgr("set server job_history_enable=False")


def preempting(lab: Lab, order: str) -> None:
    """How the scheduler preempts: S(uspend), C(heckpoint), R(equeue), D(elete)."""
    lab.qmgr(f'set sched preempt_order="{order}"')


def high_priority(lab: Lab, run_s: int = 3) -> str:
    """A job that preempts a pilot, if the scheduler is able to."""
    return lab.qsub("-q", "demand", *options(), "--", "/bin/sleep", str(run_s))


@with_crew(POLITE, SITE)
async def test_a_server_without_history_gets_no_more_jobs_than_are_wanted(keeper: Keeper, crew: Crew, lab: Lab) -> None:
    """OpenPBS's default: ``qstat -x`` then reports success, but no jobs."""
    keeper.want(2)
    await crew.until_running(2)
    most = 0
    for _ in range(50):
        most = max(most, len(lab.queued()))
        await asyncio.sleep(0.2)
    assert (most, crew.endings(), crew.noticed()) == (2, [], [])


@pytest.mark.usefixtures("history")
@with_crew(POLITE, SITE)
async def test_a_user_an_admin_and_the_scheduler_end_jobs_in_their_own_ways(
    keeper: Keeper, crew: Crew, lab: Lab
) -> None:
    preempting(lab, "D")
    keeper.want(3)
    await crew.until_running(3)
    lab.run("qdel", next(iter(keeper.book.jobs)))
    await crew.until(lambda: crew.endings() == [JobEnd.CANCELLED], "deleted by somebody")
    await crew.until_running(3)
    high = high_priority(lab)
    await crew.until(lambda: crew.endings()[1:] == [JobEnd.PREEMPTED], "deleted by the scheduler")
    await crew.until(lambda: lab.state(high) in "RF", "the other job has its node")
    await crew.until_running(3)
    assert crew.failures() == []


@with_crew(POLITE, SITE)
async def test_without_history_a_preempted_job_ends_as_its_agent_reported(keeper: Keeper, crew: Crew, lab: Lab) -> None:
    preempting(lab, "D")
    keeper.want(3)
    await crew.until_running(3)
    there = list(keeper.book.jobs)
    high_priority(lab)
    gone = await first_gone(lab, there)
    keeper.noticed(gone, "signal SIGTERM")
    await crew.until(lambda: crew.endings() == [JobEnd.PREEMPTED], "as its agent reported")


async def first_gone(lab: Lab, jobs: list[str]) -> str:
    """The first of ``jobs`` that no longer runs."""
    end_s = time.monotonic() + 60
    while time.monotonic() < end_s:
        for job in jobs:
            if lab.state(job) != "R":
                return job
        await asyncio.sleep(0.1)
    raise TimeoutError("all of them run")


@pytest.mark.usefixtures("history")
@with_crew(POLITE, SITE.replace(requeue=True))
async def test_a_requeued_job_lives_again(keeper: Keeper, crew: Crew, lab: Lab) -> None:
    preempting(lab, "R")
    keeper.want(3)
    await crew.until_running(3)
    high_priority(lab, run_s=1)
    await crew.until(lambda: any(r.restart for r in keeper.book.jobs.values()), "it is requeued")
    await crew.until(lambda: keeper.status().running == 3, "it, or its replacement, runs")
    assert set(crew.endings()) <= {JobEnd.CANCELLED}


@with_crew(POLITE, SITE)
async def test_a_suspended_job_is_replaced_and_comes_back(keeper: Keeper, crew: Crew, lab: Lab) -> None:
    preempting(lab, "S")
    keeper.want(3)
    await crew.until_running(3)
    high = high_priority(lab, run_s=600)
    await crew.until(lambda: keeper.status().suspended == 1, "one is suspended")
    await crew.until(lambda: keeper.status().pending == 1, "its replacement waits")
    lab.run("qdel", high)
    await crew.until(lambda: keeper.status().suspended == 0, "it runs again")
    await crew.until(lambda: (keeper.status().running, keeper.status().pending) == (3, 0), "the replacement goes")
    await crew.until(lambda: crew.endings() == [JobEnd.CANCELLED], "it is over")


@with_crew(POLITE, SITE.replace(walltime_min="00:01:00", grace_s=5))
async def test_a_pilot_is_shortened_to_a_window_and_warned_of_its_end(keeper: Keeper, crew: Crew, lab: Lab) -> None:
    """All nodes are reserved from shortly on: a job of an hour has to wait."""
    at = time.strftime("%Y%m%d%H%M.%S", time.localtime(time.time() + 85))
    reserved = lab.run("pbs_rsub", "-R", at, "-D", "1:00:00", "-l", f"select={len(NODES)}:ncpus={CPUS}").split()[0]
    try:
        await crew.until(lambda: "RESV_CONFIRMED" in lab.run("pbs_rstat", "-f", reserved), "it is confirmed")
        long = lab.qsub("-q", "preemptable", *options(), "--", "/bin/sleep", "600")
        keeper.want(1)
        await crew.until_running(1)
        (job,) = keeper.book.jobs
        assert 60 <= walltime_seconds(lab.attribute(job, "Resource_List.walltime")) <= 85
        assert lab.state(long) == "Q"
        await crew.until(lambda: crew.noticed() == [job], "its end is announced")
        await crew.until(lambda: crew.endings() == [JobEnd.WALLTIME], "its wall time is over")
    finally:
        lab.run("pbs_rdel", reserved)


@with_crew(POLITE, SITE)
async def test_a_limit_on_queued_jobs_is_learned_and_what_ends_is_replaced_at_once(
    keeper: Keeper, crew: Crew, lab: Lab
) -> None:
    lab.qmgr('set queue preemptable max_queued = "[u:PBS_GENERIC=2]"')
    try:
        keeper.want(3)
        learned = "with 2 jobs of ours, the scheduler refused another one: would exceed queue generic's per-user limit"
        await crew.until(lambda: keeper.status().held_back.startswith(learned), "the limit is learned")
        await crew.until_running(2)
        lab.run("qdel", next(iter(keeper.book.jobs)))
        await crew.until(lambda: len(crew.endings()) == 1, "one is deleted")
        await crew.until_running(2)
    finally:
        lab.qmgr("unset queue preemptable max_queued")
    await crew.until(lambda: keeper.status().running == 3, "another attempt finds that the limit is gone")


@with_crew(POLITE, SITE.replace(walltime_min="00:01:00", grace_s=5))
async def test_a_pilot_fits_before_dedicated_time(keeper: Keeper, crew: Crew, lab: Lab) -> None:
    at_s = (time.time() // 60 + 3) * 60
    lab.dedicate(at_s, at_s + 3600)
    try:
        keeper.want(1)
        await crew.until_running(1)
        (job,) = keeper.book.jobs
        assert 60 <= walltime_seconds(lab.attribute(job, "Resource_List.walltime")) <= 180
    finally:
        lab.dedicate()


@with_crew(POLITE, SITE)
async def test_a_held_job_and_a_stopped_queue_are_reported_in_pbss_words(keeper: Keeper, crew: Crew, lab: Lab) -> None:
    lab.qmgr("set queue preemptable started=False")
    keeper.want(1)
    await crew.until(lambda: "Queue not started" in keeper.status().waits_for, "the queue is stopped")
    (job,) = keeper.book.jobs
    lab.run("qhold", "-h", "o", job)
    await crew.until(lambda: "held" in keeper.status().waits_for, "the job is held")
    lab.qmgr("set queue preemptable started=True")
    lab.run("qrls", "-h", "o", job)
    await crew.until_running(1)
    assert keeper.status().waits_for == ""


@with_crew(POLITE, SITE)
async def test_pilots_that_are_held_or_wait_for_their_own_time_are_replaced(
    keeper: Keeper, crew: Crew, lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_record, "HELD_S", 5.0)
    lab.qmgr("set queue preemptable started=False")
    keeper.want(2)
    await crew.until(lambda: keeper.status().pending == 2, "both wait")
    held, waiting = keeper.book.jobs
    lab.run("qhold", held)
    lab.run("qalter", "-a", time.strftime("%Y%m%d%H%M", time.localtime(time.time() + 3600)), waiting)
    lab.qmgr("set queue preemptable started=True")
    await crew.until(lambda: keeper.status().running == 2, "others run meanwhile")
    assert (lab.state(held), lab.state(waiting)) == ("H", "W")
    assert crew.endings() == []


@pytest.mark.parametrize("queue", ["entrance", "entrance@pbs0"])
def test_jobs_of_an_earlier_coordinator_are_found_in_any_queue(
    queue: str, lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A routing queue has passed them on, or somebody has moved them. Their owner is who we are, not who we were before
    ``su``."""
    monkeypatch.setenv("LOGNAME", "bob")

    def submit(name: str, to: str) -> str:
        return lab.qsub("-N", name, "-q", to, *options(), "--", "/bin/sleep", "600")

    routed, moved = (submit(f"{pool_name(tmp_path)}.{number}", "entrance") for number in (1, 2))
    lab.run("qhold", moved)
    lab.run("qrerun", "-W", "force", moved)
    wait_for(lambda: lab.state(moved) == "H", "it waits", limit_s=20)
    lab.run("qmove", "workq", moved)
    others = [submit("elsewhere", "demand"), submit("somebodys", "entrance")]
    crew = Crew(tmp_path, POLITE, SITE.replace(queue=queue))

    async def script(keeper: Keeper) -> None:
        keeper.want(2)
        await crew.until(lambda: keeper.status().running + keeper.status().pending == 2, "they are found")
        assert (set(keeper.book.jobs), keeper.status().others) == ({routed, moved}, 1)

    play(crew, script)
    assert lab.queued() == others


@pytest.mark.parametrize(
    ("order", "state", "grade"), [("C", "R", Grade.FAIL), ("CD", "", Grade.OK), ("D 50 C", "", Grade.FAIL)]
)
def test_doctor_knows_whether_pilots_are_preempted_throughout(order: str, state: str, grade: Grade, lab: Lab) -> None:
    preempting(lab, order)
    pilot = lab.qsub("-q", "preemptable", *options(len(NODES)), "--", "/bin/sleep", "600")
    wait_for(lambda: lab.state(pilot) == "R", "it runs", limit_s=20)
    high = high_priority(lab, run_s=600)
    wait_for(lambda: lab.attribute(high, "comment"), "the scheduler has tried", limit_s=20)
    assert lab.state(pilot) == state
    for queue, preempts in (("preemptable", False), ("demand", True)):
        site = SITE.replace(requeue=True, queue=queue)
        found = list(queue_checks.scheduler(site, lab.folder, lambda command, _: lab.run(*command)))
        assert [finding.grade for finding in found if "preempt_order" in finding.seen] == [grade]
        assert any("preempt others" in finding.seen for finding in found) is preempts


@with_crew(POLITE, SITE.replace(orphan_s=6, silent_s=3, heartbeat_s=1, grace_s=1))
async def test_a_dead_node_is_replaced_after_its_agents_lease(keeper: Keeper, crew: Crew, lab: Lab) -> None:
    keeper.want(2)
    await crew.until_running(2)
    jobs = list(keeper.book.jobs)
    dead = next(job for job in jobs if "n1" in lab.attribute(job, "exec_host"))
    (alive,) = set(jobs) - {dead}

    def is_forgotten() -> bool:
        keeper.want(2, present=keeper.book.jobs.keys() - {dead})
        return dead not in keeper.book.jobs

    lab.kill_node("n1")
    try:
        await crew.until(is_forgotten, "the dead job is over")
        assert crew.endings() == [JobEnd.NODE_FAILED]
        assert alive in keeper.book.jobs
        await crew.until(lambda: is_forgotten() and keeper.status().running == 2, "it is replaced")
        assert dead not in lab.queued()
    finally:
        lab.start_node("n1")


@with_crew(STUBBORN, SITE.replace(command_timeout_s=2))
async def test_a_server_that_does_not_answer_changes_nothing(keeper: Keeper, crew: Crew, lab: Lab) -> None:
    keeper.want(2)
    await crew.until_running(2)
    lab.pause_server()
    await crew.until(lambda: "did not answer within 2 s" in keeper.status().trouble, "the trouble is reported")
    assert (keeper.status().running, crew.endings()) == (2, [])
    lab.resume_server()
    await crew.until(lambda: keeper.status().trouble == "", "it answers again")


def test_one_qselect_and_one_qstat_per_poll(lab: Lab) -> None:
    asked: list[str] = []

    def run(command: list[str], limit_s: float) -> str:
        assert limit_s == SITE.command_timeout_s
        asked.append(command[0])
        return lab.run(*command)

    lab.qmgr("set server job_history_enable=True")
    jobs = [lab.qsub("-N", "pilot-x.1", "-q", "preemptable", *options(), "--", "/bin/sleep", "600") for _ in range(5)]
    shown = PbsQueue(SITE, "pilot-x", run, "root").poll(jobs, time.time())
    lab.qmgr("set server job_history_enable=False")
    assert set(shown.jobs) == set(jobs)
    assert asked == ["qselect", "qstat"]
