"""Real pilots in a real preemptable queue, real training, and real faults."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from contextlib import suppress

import psutil
import pytest

from pilot.protocol.pool_status import NodeStatus
from tests.e2e.proof import proved
from tests.pools import TRAIN
from tests.slurm.lab import Lab, LabConfig, wait_for
from tests.slurm.pools import EPOCHS, SlurmPool, high_priority, start_delay_s, training

DEAR = ("--rescale-up-s", "60", "--rescale-down-s", "60")
"""Nothing that leaves within a minute is worth a rescale."""
AT_ONCE = LabConfig(grace_s=0, user_signal=False)
NO_SIGNAL = LabConfig(user_signal=False)


def lost_nothing(pool: SlurmPool, *names: str) -> None:
    """No step completed by a rank was repeated."""
    for name in names:
        trainer = pool.trainer(name)
        assert trainer.lost_steps == 0, trainer


def test_a_preemption_costs_no_step_and_the_other_job_starts_within_the_grace(lab: Lab, pool: SlurmPool) -> None:
    pool.up_on(6)
    first, second = pool.submit_elastic(3, EPOCHS), pool.submit_elastic(3, EPOCHS)
    pool.trains(first, 3)
    pool.trains(second, 3)
    _, note, submitted_s = high_priority(lab, "-N2", run_s=8)
    assert start_delay_s(note, submitted_s) < lab.config.grace_s
    pool.until_ended("preempted", 2)
    pool.until_pilots(6)
    pool.trains(first, 3)
    pool.trains(second, 3)
    lost_nothing(pool, first, second)
    status = pool.status()
    assert status.keeper.endings == {"preempted": 2}
    assert sum(trainer.preemptions for trainer in status.trainers) >= 1
    assert sum(trainer.losses for trainer in status.trainers) == 0


@pytest.mark.parametrize("lab", [AT_ONCE, NO_SIGNAL], indirect=True, ids=["no grace", "no user signal"])
def test_a_preemption_by_sigterm_only(lab: Lab, pool: SlurmPool) -> None:
    name = training(pool, 3, notice_signal=None)
    _, note, submitted_s = high_priority(lab, "-N5")
    assert start_delay_s(note, submitted_s) < lab.config.grace_s + lab.config.kill_wait_s
    pool.until_ended("preempted", 2)
    pool.until_pilots(3)
    pool.trains(name, 3)
    lost_nothing(pool, name)
    assert pool.status().keeper.endings == {"preempted": 2}


@pytest.mark.parametrize("lab", [NO_SIGNAL], indirect=True)
def test_a_preemption_that_only_the_poll_shows(lab: Lab, pool: SlurmPool) -> None:
    """Without a step and without a signal, the job itself is not notified before its grace period is over."""
    name = training(pool, 3, notice_signal=None, launcher="simple")
    _, note, submitted_s = high_priority(lab, "-N5")
    assert start_delay_s(note, submitted_s) < lab.config.grace_s
    log = (pool.run_dir / "coordinator.log").read_text()
    assert "the scheduler preempts it" in log
    pool.until_ended("preempted", 2)
    pool.until_pilots(3)
    pool.trains(name, 3)
    lost_nothing(pool, name)


@pytest.mark.parametrize("lab", [LabConfig(nodes=2, grace_s=0, user_signal=False)], indirect=True)
def test_a_requeued_job_comes_back_as_a_new_life_of_it(lab: Lab, pool: SlurmPool) -> None:
    name = training(pool, 2, partition="requeue", requeue=True, notice_signal=None)
    job = pool.job_on(lab.nodes[0])
    high_priority(lab, "-w", lab.nodes[0], run_s=150)  # longer than the job waits for its BeginTime
    pool.trains(name, 1)
    wait_for(lambda: "Restarts=1" in lab.run("scontrol", "show", "job", job), "it is requeued", limit_s=60)
    wait_for(lambda: lab.state(job) == "RUNNING", "it runs again", limit_s=240)
    wait_for(lambda: job in pool.jobs(), "it is back in the pool", limit_s=60)
    pool.trains(name, 2)
    lost_nothing(pool, name)
    assert set(pool.status().keeper.endings) <= {"cancelled"}


def test_a_job_that_somebody_cancels_is_replaced(lab: Lab, pool: SlurmPool) -> None:
    name = training(pool, 3)
    lab.run("scancel", pool.job_on(lab.nodes[0]))
    pool.until_ended("cancelled", 1)
    pool.until_pilots(3)
    pool.trains(name, 3)
    lost_nothing(pool, name)


def test_pilots_leave_in_good_order_before_their_wall_time_ends(lab: Lab, pool: SlurmPool) -> None:
    pool.up_on(2, walltime="00:02:00", walltime_min=None, notice_signal=None)
    name = pool.submit_elastic(2, 4000)
    pool.trains(name, 2)
    pool.until_ended("wall time", 2)
    pool.until_pilots(2)
    pool.trains(name, 2)
    lost_nothing(pool, name)
    assert "TIMEOUT" not in lab.run("squeue", "-h", "-t", "all", "-o", "%T")


def test_a_node_that_dies_is_a_loss_and_its_pilot_is_replaced(lab: Lab, pool: SlurmPool) -> None:
    name = training(pool, 3)
    dead = lab.nodes[0]
    lab.kill_node(dead)
    pool.trains(name, 2)
    pool.until_ended("node failed", 1)
    pool.until_pilots(3)
    assert not any(node.host == dead for node in pool.status().pool)
    pool.trains(name, 3)
    lost_nothing(pool, name)
    lab.start_node(dead)


def test_all_pilots_preempted_at_once_lose_nothing(lab: Lab, pool: SlurmPool) -> None:
    pool.up_on(6)
    first, second = pool.submit_elastic(3, 40), pool.submit_elastic(3, 40)
    pool.trains(first, 3)
    pool.trains(second, 3)
    _, note, submitted_s = high_priority(lab, "-N6")
    assert start_delay_s(note, submitted_s) < lab.config.grace_s
    pool.until_ended("preempted", 6)
    pool.until_pilots(6)
    for name in (first, second):
        assert pool.pilot("wait", name).stdout == f"{name} finished\n"
        lost_nothing(pool, name)
        assert pool.trainer(name).redone_steps == 0
        proved(pool, name, 40)


def test_a_batch_script_of_ones_own_joins_the_pool(lab: Lab, pool: SlurmPool) -> None:
    pool.up_on(1)
    script = pool.folder / "own.sh"
    script.write_text(pool.pilot("sites", "show", pool.folder / "lab.py", "--own-script").stdout)
    own = lab.sbatch(str(script))
    status = pool.until_pilots(2)
    assert own in pool.jobs()
    assert status.keeper.running == 1
    name = pool.submit_elastic(2, EPOCHS)
    pool.trains(name, 2)
    lab.run("scancel", own)
    pool.until_pilots(1)
    pool.trains(name, 1)
    lost_nothing(pool, name)


SHELL = """
SBATCH_PARTITION=high SBATCH_TIMELIMIT=1 SBATCH_EXPORT=NONE SBATCH_ARRAY_INX=1-3 SLURM_EXPORT_ENV=NONE
SLURM_MEM_PER_CPU=1 SLURM_MEM_PER_NODE=2 SLURM_CPU_BIND=map_cpu:0 SLURM_NTASKS=9 SLURM_DISTRIBUTION=nonsense
SRUN_CONTAINER=/nowhere SQUEUE_FORMAT=%i SQUEUE_PARTITION=high SCANCEL_PARTITION=high SINFO_FORMAT=%t SLURM_JOB_ID=7
"""
"""What a shell may have exported, or a job of Slurm's has set."""


def export(shell: pytest.MonkeyPatch, variables: Sequence[str]) -> None:
    for name, _, value in (given.partition("=") for given in variables):
        shell.setenv(name, value)


@pytest.mark.parametrize("lab", [LabConfig(nodes=2)], indirect=True)
def test_the_submitting_shells_options_change_no_pilot(
    lab: Lab, pool: SlurmPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as shell:
        export(shell, SHELL.split())
        pool.up_on(2)
        name = pool.submit_elastic(2, EPOCHS)
        pool.trains(name, 2)
    assert sorted(lab.run("squeue", "-h", "-o", "%A %P %l").splitlines()) == ["1 preempt 1:00:00", "2 preempt 1:00:00"]
    with monkeypatch.context() as shell:
        export(shell, SHELL.split())
        pool.pilot("down")
    assert lab.queued() == []


@pytest.mark.parametrize("lab", [LabConfig(nodes=1)], indirect=True)
def test_a_batch_script_of_ones_own_runs_from_any_shell(
    lab: Lab, pool: SlurmPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool.up("--pilots", "0")
    script = pool.folder / "own.sh"
    script.write_text(pool.pilot("sites", "show", "slurm_lab", "--own-script").stdout)
    with monkeypatch.context() as shell:
        export(shell, [given for given in SHELL.split() if given.startswith(("SLURM_", "SRUN_", "SBATCH_EXPORT"))])
        own = lab.sbatch(str(script))
    pool.until_pilots(1)
    lab.run("scancel", own)


@pytest.mark.parametrize("lab", [LabConfig(proctrack="pgid")], indirect=True)
def test_nothing_is_left_of_a_script_that_starts_a_session_of_its_own(lab: Lab, pool: SlurmPool) -> None:
    """With ``proctrack/pgid`` Slurm does not find such a process, so the agent's guardian has to."""
    escape = pool.folder / "escape.py"
    started = "subprocess.Popen(['sleep', '987654'], start_new_session=True)"
    escape.write_text(f"import subprocess\n{started}\n" + TRAIN.read_text())
    pool.up_on(2)
    name = pool.submit(escape, "--epochs", str(EPOCHS), "--step-s", "0.05", options=("--max-nodes", "2"))
    pool.until_step(name, 5, 2)
    assert len(sleepers(lab)) == 2
    lab.run("scancel", pool.job_on(lab.nodes[0]))
    wait_for(lambda: len(sleepers(lab)) == 1, "the cancelled job's sleeper is gone", limit_s=40)
    pool.pilot("down")
    wait_for(lambda: not sleepers(lab), "all are gone", limit_s=40)


def sleepers(lab: Lab) -> list[int]:
    """The process that :func:`escape` started."""
    found = []
    for process in lab.job_processes():
        with suppress(psutil.NoSuchProcess):  # a zombie by now, or gone
            found += [process.pid] if "987654" in process.cmdline() else []
    return found


def test_a_killed_coordinator_leaves_no_job_and_no_process(lab: Lab, pool: SlurmPool) -> None:
    training(pool, 3, orphan_s=12)
    pool.kill_for_good()
    wait_for(lambda: not lab.queued(), "no job is queued", limit_s=90)
    wait_for(lambda: not lab.job_processes(), "no process of a job", limit_s=20)


def test_an_interrupted_coordinator_takes_its_jobs_with_it(lab: Lab, pool: SlurmPool) -> None:
    pool.up_on(3)
    coordinator = pool.coordinator()
    assert coordinator is not None
    os.kill(coordinator, signal.SIGINT)
    wait_for(lambda: pool.coordinator() is None, "the coordinator has ended", limit_s=60)
    assert lab.queued() == []


def leaves_soon(node: NodeStatus) -> bool:
    """Long before its wall time ends."""
    return node.ends_s is not None and node.ends_s - node.joined_s < 600


@pytest.mark.parametrize("lab", [LabConfig(nodes=3)], indirect=True)
def test_a_planned_job_takes_a_node_that_no_rescale_was_spent_on(lab: Lab, pool: SlurmPool) -> None:
    """Slurm plans a job on one pilot's node after another job ends: a trainer with expensive rescales starts without
    that node, and is not disturbed when the planned job starts."""
    _, planned, busy = lab.nodes
    blocks = lab.sbatch("-p", "high", "-w", busy, "-t", "1", "--wrap", "sleep 600")
    pool.up_on(2)
    _, note, _ = high_priority(lab, "-N2", "-w", f"{planned},{busy}", "-t", "1")
    status = pool.until("the plan is known", lambda s: any(map(leaves_soon, s.pool)))
    assert [node.job for node in status.pool if leaves_soon(node)] == [pool.job_on(planned)]
    name = pool.submit(TRAIN, "--epochs", str(EPOCHS), "--step-s", "0.05", options=("--max-nodes", "2", *DEAR))
    pool.trains(name, 1)
    lab.run("scancel", blocks)
    wait_for(note.exists, "the planned job runs", limit_s=60)
    pool.trains(name, 1)
    trainer = pool.trainer(name)
    assert (trainer.generation, trainer.preemptions, trainer.losses) == (1, 0, 0)


@pytest.mark.parametrize("lab", [LabConfig(nodes=2)], indirect=True)
def test_a_node_on_which_pilots_fail_is_listed_and_cleared_and_pilots_end_by_themselves(
    lab: Lab, pool: SlurmPool
) -> None:
    sick, mended = lab.nodes[1], pool.folder / "mended"
    prologue = f'[ "$SLURMD_NODENAME" != {sick} ] || [ -e {mended} ] || {{ echo no space left >&2; exit 1; }}'
    pool.up_on(1, prologue=prologue)
    pool.pilot("scale", "2")
    pool.until("it is set aside", lambda status: [aside.node for aside in status.keeper.set_aside] == [sick])
    for words in (["nodes"], ["status"]):
        said = " ".join(pool.pilot(*words).stdout.split())
        assert f"{sick} is set aside for all trainers" in said
        assert "no space left" in said
    assert f"{sick} is set aside for 10 min: " in pool.pilot("events").stdout
    mended.touch()
    assert pool.pilot("nodes", "--clear", sick).stdout == f"cleared {sick}\n"
    pool.until_pilots(2)
    pool.pilot("down")
    logs = [path.read_text() for path in (pool.run_dir / "pilots").glob("*.stderr")]
    assert sum("left: it was asked to leave" in log for log in logs) == 2
    assert not any("Terminated" in log or "CANCELLED" in log for log in logs)
