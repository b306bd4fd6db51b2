"""Provider, keeper and queries against a real Slurm, with a trivial agent: jobs and queues, no training."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from pilot.doctor import queue_checks
from pilot.doctor.slurm_limits import longest_job
from pilot.provisioning import job_record
from pilot.provisioning.keeper import Keeper, pool_name
from pilot.provisioning.retry import Troubled
from pilot.provisioning.scheduler import JobEnd
from pilot.provisioning.scheduler_slurm import SlurmQueue
from pilot.site.site_files import load_site
from tests.crew import POLITE, STUBBORN, Crew, play, with_crew
from tests.slurm.lab import Lab, LabConfig, wait_for

SITE = load_site("slurm_lab")
TWO_NODES = LabConfig(nodes=2)


@with_crew(POLITE, SITE)
async def test_a_preempted_job_that_leaves_in_its_grace_is_replaced(keeper: Keeper, crew: Crew, lab: Lab) -> None:
    keeper.want(6)
    await crew.until_running(6)
    high = lab.sbatch("-p", "high", "-N2", "--wrap", "sleep 5")
    await crew.until(lambda: crew.endings() == [JobEnd.PREEMPTED] * 2, "two preempted")
    await crew.until(lambda: lab.state(high) in ("RUNNING", "COMPLETED"), "the other job has its nodes")
    await crew.until_running(6)
    assert crew.failures() == []


@pytest.mark.parametrize("lab", [LabConfig(grace_s=20, kill_wait_s=5)], indirect=True)
@with_crew(STUBBORN, SITE)
async def test_a_preemption_is_noticed_early_by_the_poll(keeper: Keeper, crew: Crew, lab: Lab) -> None:
    keeper.want(6)
    await crew.until_running(6)
    lab.sbatch("-p", "high", "-N1", "--wrap", "sleep 1")
    await crew.until(crew.noticed, "a notice")
    assert lab.state(crew.noticed()[0]) == "RUNNING"
    await crew.until(lambda: crew.endings() == [JobEnd.PREEMPTED], "it is preempted")


@with_crew(POLITE, lambda given: SITE.replace(only_nodes=",".join(given["lab"].nodes[3:5])))
async def test_pilots_run_on_the_nodes_of_their_pool_only(keeper: Keeper, crew: Crew, lab: Lab) -> None:
    keeper.want(3)
    await crew.until_running(2)
    assert sorted(lab.run("squeue", "-h", "-t", "R", "-o", "%N").split()) == lab.nodes[3:5]
    assert keeper.status().pending == 1


@pytest.mark.usefixtures("lab")
@with_crew("bash -c 'sleep 3; exit 3'", SITE)
async def test_a_job_that_fails_is_not_replaced_at_once(keeper: Keeper, crew: Crew) -> None:
    keeper.want(1)
    await crew.until(lambda: crew.endings() == [JobEnd.FAILED], "it failed")
    await crew.until(lambda: keeper.status().held_back.startswith("waiting"), "a pause after the failure")


@pytest.mark.parametrize("lab", [LabConfig(node_timeout_s=300)], indirect=True)
@pytest.mark.parametrize(("lease_s", "asked_first"), [(600, False), (6, True)], ids=["Slurm is first", "we are first"])
@with_crew(POLITE, lambda given: SITE.replace(orphan_s=given["lease_s"], silent_s=5))
async def test_a_dead_node_is_reported_whoever_finds_it_first(
    keeper: Keeper,
    crew: Crew,
    lease_s: int,  # noqa: ARG001  # for the site
    asked_first: bool,
    lab: Lab,
) -> None:
    """When its agent's lease is over we cancel the job, and Slurm never reports that its node failed."""
    dead_node = lab.nodes[0]
    keeper.want(2)
    await crew.until_running(2)
    dead = lab.run("squeue", "-h", "-w", dead_node, "-o", "%A").strip()
    alive = set(keeper.book.jobs) - {dead}
    lab.kill_node(dead_node)
    keeper.want(2, present=alive)
    if asked_first:
        await crew.until(lambda: lab.state(dead) == "COMPLETING", "we cancelled its job")
    lab.run("scontrol", "update", f"NodeName={dead_node}", "State=DOWN", "Reason=dead")
    await crew.until(lambda: crew.endings() == [JobEnd.NODE_FAILED], "the node failed")
    await crew.until(lambda: len(alive & set(crew.present())) == 1 and keeper.status().running == 2, "replaced")
    assert lab.state(dead) == ("CANCELLED" if asked_first else "NODE_FAIL")
    lab.start_node(dead_node)


@pytest.mark.usefixtures("lab")
@with_crew(POLITE, SITE)
async def test_pending_jobs_go_before_running_ones(keeper: Keeper, crew: Crew) -> None:
    keeper.want(8)
    await crew.until(lambda: keeper.status().running == 6 and keeper.status().pending == 2, "six run, two wait")
    keeper.want(6, spare=list(keeper.book.jobs))
    await crew.until(lambda: crew.endings() == [JobEnd.CANCELLED] * 2, "two are cancelled")
    assert keeper.status().running == 6


@pytest.mark.parametrize("lab", [LabConfig(nodes=4)], indirect=True)
@with_crew(POLITE, SITE.replace(requeue=True))
async def test_pilots_that_are_held_or_wait_for_their_own_time_are_replaced(
    keeper: Keeper, crew: Crew, lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_record, "HELD_S", 10.0)
    keeper.want(2)
    await crew.until_running(2)
    first, second = keeper.book.jobs
    lab.run("scontrol", "requeue", first)
    await crew.until(lambda: keeper.status().waits_for == "1 × PENDING, BeginTime", "it waits for its time")
    await crew.until(lambda: keeper.status().running == 2, "another one runs meanwhile")
    lab.run("scontrol", "requeuehold", second)
    await crew.until(lambda: "1 × PENDING, job requeued in held state" in keeper.status().waits_for, "it is held")
    await crew.until(lambda: keeper.status().running == 2, "another one runs meanwhile")
    assert {first, second} <= keeper.book.jobs.keys()
    assert crew.endings() == []


@pytest.mark.parametrize("lab", [TWO_NODES], indirect=True)
@with_crew(POLITE, SITE.replace(walltime_min=None))
async def test_a_long_pilot_does_not_start_before_a_planned_job(keeper: Keeper, crew: Crew, lab: Lab) -> None:
    await planned(crew, lab, 1, minutes=20)
    keeper.want(1)
    await crew.until(lambda: keeper.status().planned_nodes == 1 and keeper.status().pending == 1, "it waits")
    (job,) = keeper.book.jobs
    await crew.until(lambda: "Reason=None" not in lab.run("scontrol", "show", "job", job), "Slurm says why")
    await asyncio.sleep(8)  # at least one backfill cycle: it must not start
    assert keeper.status().pending == 1
    lab.run("scancel", "--user=root", "--partition=high")


@pytest.mark.parametrize("lab", [TWO_NODES], indirect=True)
@with_crew(POLITE, SITE.replace(walltime_min="00:10:00"))
async def test_a_pilot_that_fits_before_a_planned_job_starts_at_once(keeper: Keeper, crew: Crew, lab: Lab) -> None:
    await planned(crew, lab, 1, minutes=20)
    keeper.want(1)
    await crew.until_running(1)
    (record,) = keeper.book.jobs.values()
    assert 10 * 60 <= record.walltime_s <= 19 * 60
    lab.run("scancel", "--user=root", "--partition=high")


async def planned(crew: Crew, lab: Lab, nodes: int, minutes: int) -> None:
    """Let Slurm plan a job on all nodes, one of which is used for some minutes; wait until the others are planned."""
    lab.sbatch("-p", "high", "-w", lab.nodes[0], "-t", str(minutes), "--wrap", "sleep 600")
    lab.sbatch("-p", "high", f"-N{len(lab.nodes)}", "-t", "30", "--wrap", "sleep 600")
    await crew.until(lambda: lab.nodes_in("planned") == nodes, "all other nodes are planned for the waiting job")


@pytest.mark.parametrize("lab", [TWO_NODES], indirect=True)
@with_crew(POLITE, SITE)
async def test_a_pilot_that_ends_before_maintenance_starts_at_once(keeper: Keeper, crew: Crew, lab: Lab) -> None:
    when = ("starttime=now+600", "duration=60", "nodes=ALL", "users=root")
    lab.run("scontrol", "create", "reservation", "reservationname=maintenance", "flags=maint", *when)
    keeper.want(2)
    await crew.until_running(2)
    assert {record.walltime_s for record in keeper.book.jobs.values()} <= {8 * 60.0, 9 * 60.0}


@with_crew(POLITE, SITE)
async def test_a_window_shorter_than_the_warm_up_gets_no_short_pilot(keeper: Keeper, crew: Crew, lab: Lab) -> None:
    await planned(crew, lab, 5, minutes=6)
    keeper.want(2, warm_up_s=600)
    await crew.until(lambda: keeper.status().planned_nodes == 5 and keeper.status().pending == 2, "they wait")
    assert {record.walltime_s for record in keeper.book.jobs.values()} == {SITE.walltime_s}
    keeper.want(2, warm_up_s=10)
    await crew.until_running(2)
    assert {record.walltime_s for record in keeper.book.jobs.values()} <= {180, 240}
    lab.run("scancel", "--user=root", "--partition=high")


@pytest.mark.parametrize(
    ("stop", "start", "limit_s", "trouble"),
    [
        (Lab.pause_controller, Lab.resume_controller, 3, "squeue did not answer within 3 s"),
        (Lab.stop_controller, Lab.start_controller, 60, "squeue failed: "),
    ],
    ids=["stopped", "gone"],
)
@with_crew(POLITE, lambda given: SITE.replace(command_timeout_s=given["limit_s"]))
async def test_a_controller_that_does_not_answer_changes_nothing_and_is_reported(
    keeper: Keeper,
    crew: Crew,
    stop: Callable[[Lab], None],
    start: Callable[[Lab], None],
    limit_s: float,  # noqa: ARG001  # for the site
    trouble: str,
    lab: Lab,
) -> None:
    keeper.want(2)
    await crew.until_running(2)
    await crew.until(lambda: lab.run("squeue", "-h", "-s").count(".0 ") == 2, "the steps of both run")
    stop(lab)
    await crew.until(lambda: keeper.status().trouble.startswith(trouble), "the trouble is reported")
    keeper.want(4)
    silent = len(crew.events)
    await asyncio.sleep(3 * SITE.poll_s)  # longer than two polls: it must have no effect
    assert (keeper.status().running, keeper.status().pending, crew.endings()) == (2, 0, [])
    start(lab)
    await crew.until(
        lambda: Troubled("the scheduler answers again") in crew.events[silent:], "the end of the trouble is reported"
    )
    await crew.until_running(4)
    assert crew.endings() == []


def test_jobs_of_an_earlier_coordinator_are_found_by_their_name(lab: Lab, tmp_path: Path) -> None:
    lab.sbatch("-J", f"{pool_name(tmp_path)}.1", "--wrap", "sleep 600")
    lab.sbatch("-J", "somebody-else", "--wrap", "sleep 600")
    crew = Crew(tmp_path, POLITE, SITE)

    async def script(keeper: Keeper) -> None:
        keeper.want(1)
        await crew.until(lambda: keeper.status().running == 1, "it is found")
        assert list(keeper.book.jobs) == ["1"]
        assert keeper.status().others == 1

    play(crew, script)
    assert lab.queued() == ["2"]
    lab.run("scancel", "2")


@pytest.mark.usefixtures("lab")
@with_crew(POLITE, SITE.replace(partition="no-such-partition"))
async def test_a_refusal_of_slurm_is_quoted(keeper: Keeper, crew: Crew) -> None:
    keeper.want(1)
    await crew.until(lambda: "Invalid partition name specified" in keeper.status().trouble, "the refusal is reported")


@pytest.mark.usefixtures("accounting")
@pytest.mark.parametrize("lab", [LabConfig(nodes=3, grace_s=0, kill_wait_s=2, remembers_s=2)], indirect=True)
def test_the_true_ends_of_jobs_that_squeue_has_forgotten(lab: Lab) -> None:
    jobs = [lab.sbatch("--no-requeue", "-w", node, "--wrap", "sleep 600") for node in lab.nodes]
    wait_for(lambda: lab.nodes_in("idle") == 0, "all run", limit_s=30)
    lab.run("scancel", jobs[0])
    lab.run("scontrol", "update", f"NodeName={lab.nodes[1]}", "State=DOWN", "Reason=test")
    high = lab.sbatch("-p", "high", "-w", lab.nodes[2], "--wrap", "true")
    wait_for(lambda: not any(map(lab.state, [*jobs, high])), "squeue has forgotten them", limit_s=90)
    queue = SlurmQueue(SITE, "pilot-x", lambda command, _: lab.run(*command))
    shown = queue.poll(jobs, time.time())
    endings = [JobEnd.CANCELLED, JobEnd.NODE_FAILED, JobEnd.PREEMPTED]
    assert ([shown.jobs[job].ending for job in jobs], shown.trouble) == (endings, "")
    assert all(shown.jobs[job].start_s and shown.jobs[job].end_s for job in jobs)
    lab.stop_accounting()
    queue = SlurmQueue(SITE, "pilot-x")
    wait_for(lambda: "how jobs ended is not known: sacct " in queue.poll(jobs, 0).trouble, "the trouble", limit_s=60)


@pytest.mark.usefixtures("accounting")
@pytest.mark.parametrize("lab", [LabConfig(nodes=1)], indirect=True)
def test_the_lab_enforces_limits_of_accounts(lab: Lab) -> None:
    lab.limit("MaxSubmitJobs=1")
    job = lab.sbatch("--wrap", "sleep 600")
    with pytest.raises(RuntimeError, match="AssocMaxSubmitJobLimit"):
        lab.sbatch("--wrap", "sleep 600")
    lab.run("scancel", job)
    lab.limit("MaxSubmitJobs=-1")
    lab.run("scancel", lab.sbatch("--wrap", "sleep 600"), lab.sbatch("--wrap", "sleep 600"))


@pytest.mark.parametrize("lab", [LabConfig(nodes=1, accounting=False)], indirect=True)
def test_jobs_in_a_hidden_partition_are_found(lab: Lab) -> None:
    """Slurm shows root all of them, but other users only if they ask for it."""
    lab.folder.chmod(0o755)
    job = lab.sbatch("-J", "pilot-x.1", "--wrap", "sleep 600")
    lab.run("scontrol", "update", "PartitionName=preempt", "Hidden=YES")

    def as_nobody(command: Sequence[str], _limit_s: float) -> str:
        return lab.run("setpriv", "--reuid=65534", "--clear-groups", *command)

    shown = SlurmQueue(SITE, "pilot-x", as_nobody, user="root").poll([], time.time())
    lab.run("scancel", job)
    assert set(shown.jobs) == {job}


def test_one_squeue_for_our_jobs_one_for_pending_jobs_and_one_sinfo_per_poll(lab: Lab) -> None:
    asked: list[str] = []

    def run(command: Sequence[str], limit_s: float) -> str:
        assert limit_s == SITE.command_timeout_s
        asked.append(command[0])
        return lab.run(*command)

    jobs = [lab.sbatch("-J", "pilot-x.1", "--wrap", "sleep 600") for _ in range(4)]
    wait_for(lambda: lab.state(jobs[0]) == "RUNNING", "one of them runs", limit_s=30)
    shown = SlurmQueue(SITE, "pilot-x", run).poll(jobs, time.time())
    assert set(shown.jobs) == set(jobs)
    assert asked == ["squeue", "sinfo", "scontrol", "squeue"]
    lab.run("scancel", *jobs)


@pytest.mark.usefixtures("accounting")
@pytest.mark.parametrize("lab", [LabConfig(nodes=1)], indirect=True)
def test_the_longest_job_that_accounts_allow_is_that_of_the_first_who_limits_it(lab: Lab) -> None:
    def found() -> tuple[str, float] | None:
        return longest_job(SITE, "preempt", lambda command, _: lab.run(*command))

    assert found() is None
    lab.limit("MaxWall=00:20:00", "account")
    assert found() == ("the account root", 1200.0)
    lab.limit("MaxWall=00:30:00", "user")
    assert found() == ("the account root", 1800.0)
    job = lab.sbatch("-t", "40", "--wrap", "true")
    wait_for(lambda: "AssocMaxWall" in lab.run("squeue", "-h", "-j", job, "-o", "%r"), "it never starts", limit_s=30)
    lab.limit("MaxWall=02:00:00", "qos")
    assert found() == ("the QOS normal", 7200.0)
    wait_for(lambda: lab.state(job) == "COMPLETED", "it is the first limit that counts", limit_s=60)
    findings = queue_checks.scheduler(SITE.replace(walltime="03:00:00"), Path())
    assert [finding.seen for finding in findings if finding.remedy] == [
        "jobs may run for 02:00:00 there, says the QOS normal, but the site file requests 03:00:00"
    ]
    lab.stop_accounting()
    wait_for(
        lambda: any("are not known: sacctmgr" in finding.seen for finding in queue_checks.scheduler(SITE, Path())),
        "that it is not known is a finding",
        limit_s=60,
    )
