"""Real pilots of an ordinary user in a real PBS queue, real training, and real faults."""

from __future__ import annotations

import re

import pytest

from pilot.site.site import PBS_GRACE_S
from tests.pbs.lab import CPUS, Lab
from tests.pbs.pools import PbsPool, high_priority
from tests.slurm.lab import wait_for
from tests.slurm.pools import start_delay_s, training

MOM_LOOKS_S = 10.0
"""MoM first checks this long after TERM whether the job is still alive; by then its kill delay is over."""
TRY_KILL_DELAY = """
from pathlib import Path
from pilot.doctor.kill_delay import tried
from pilot.site.site_files import load_site_file
(finding,) = tried(load_site_file("{site}"), Path("{folder}"), 60)
print(finding.grade, finding.seen)
"""
SHELL = """
PBS_DPREFIX=#OTHER PBS_QUEUE=demand PBS_ACCOUNT=mine PBS_JOBID=7.pbs0 PBS_JOBNAME=other PBS_ENVIRONMENT=PBS_INTERACTIVE
PBS_NODEFILE=/nowhere PBS_TASKNUM=9 PBS_O_QUEUE=demand PBS_O_WORKDIR=/nowhere PBS_JOBDIR=/nowhere PBS_TMPDIR=/nowhere
"""
"""What a shell may have exported, or a job of PBS's has set."""
LATE_S = 5.0
"""PBS reassigns the node 1 to 2.5 s after a pilot has left; without a shell that survives TERM it takes 6 s or more."""


@pytest.mark.parametrize(("order", "requeue"), [("D", False), ("R", True)], ids=["deleted", "requeued"])
def test_a_preemption_costs_no_step_and_the_other_job_starts_soon(
    order: str, requeue: bool, lab: Lab, pool: PbsPool
) -> None:
    lab.qmgr(f'set sched preempt_order="{order}"', "set server job_history_enable=True")
    name = training(pool, 3, requeue=requeue)
    _, note, submitted_s = high_priority(lab, run_s=8)
    late_s = submitted_s + start_delay_s(note, submitted_s) - pool.left_s()
    pool.trains(name, 2)
    pool.until_pilots(3)
    pool.trains(name, 3)
    trainer = pool.trainer(name)
    assert (trainer.lost_steps, trainer.losses) == (0, 0), trainer
    assert "GroupBroken" not in (pool.run_dir / "journal.jsonl").read_text()
    assert late_s < LATE_S


def test_a_suspended_pilot_uses_no_processor_and_joins_anew_when_it_goes_on(lab: Lab, pool: PbsPool) -> None:
    """OpenPBS's default order is SCR: it suspends first, stopping the session, which contains only the agent."""
    lab.qmgr('set sched preempt_order="SCR"')
    name = training(pool, 3)
    high, note, submitted_s = high_priority(lab, run_s=600)
    assert start_delay_s(note, submitted_s) < LATE_S
    pool.until("one is suspended", lambda s: s.keeper.suspended == 1)
    pool.trains(name, 2)
    (job,) = [job for job in lab.queued() if lab.state(job) == "S"]
    node = lab.attribute(job, "exec_host").partition("/")[0]
    wait_for(lambda: set(lab.states_on(node)) == {"stopped"}, "everything of it is stopped", limit_s=10)
    lab.run("qdel", "-W", "force", high)
    pool.until_pilots(3)
    pool.trains(name, 3)
    assert pool.trainer(name).lost_steps == 0


def test_a_sole_pilot_saves_all_its_steps_within_the_kill_delay(lab: Lab, pool: PbsPool) -> None:
    lab.qmgr('set sched preempt_order="D"')
    name = training(pool, 1)
    _, note, submitted_s = high_priority(lab, nodes=3, run_s=2)
    start_delay_s(note, submitted_s)
    pool.until_ended("preempted", 1)
    pool.until_pilots(1)
    pool.trains(name, 1)
    assert pool.trainer(name).lost_steps == 0


def test_the_submitting_shells_options_change_no_pilot(
    lab: Lab, pool: PbsPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, _, value in (given.partition("=") for given in SHELL.split()):
        monkeypatch.setenv(name, value)
    pool.up_on(1)
    (job,) = lab.queued()
    names = ("queue", "Resource_List.walltime", "Resource_List.ncpus", "Account_Name")
    assert [lab.attribute(job, name) for name in names] == ["preemptable", "01:00:00", str(CPUS), "mine"]
    pool.pilot("down")
    assert lab.queued() == []


def test_a_killed_coordinators_jobs_behind_a_routing_queue_are_found_again_and_cancelled(
    lab: Lab, pool: PbsPool
) -> None:
    def up() -> list[str]:
        pool.pilot("up", "--site", site, "--pilots", "2")
        pool.until("two wait", lambda status: status.keeper.pending == 2)
        return lab.queued()

    site = pool.write_site(queue="entrance")
    lab.qmgr("set queue preemptable started=False")
    try:
        jobs = up()
        pool.kill_for_good()
        assert up() == jobs
        assert "nothing is left running" in pool.pilot("down").stdout
        assert lab.queued() == []
    finally:
        lab.qmgr("set queue preemptable started=True")


def test_doctor_tries_how_long_a_job_lives_after_term(lab: Lab, pool: PbsPool) -> None:
    site = pool.write_site()
    lab.qmgr("set queue preemptable kill_delay=4")
    try:
        output = pool.python(TRY_KILL_DELAY.format(site=site, folder=pool.folder))
    finally:
        lab.qmgr("unset queue preemptable kill_delay")
    found = re.match(r"(\w+) PBS kills a preempted job ([\d.]+) s after TERM", output)
    assert found is not None, output
    assert (found[1] == "fail") == (float(found[2]) < PBS_GRACE_S)
    assert 3.5 <= float(found[2]) <= MOM_LOOKS_S + LATE_S
    assert lab.queued() == []
