"""Commands that hang or fail are reported, and a job's outcome is decided from all that is known."""

from __future__ import annotations

import sys
from pathlib import Path

import psutil
import pytest

from pilot.core.errors import SubmitError
from pilot.host.commands import run_command
from pilot.provisioning.scheduler import JobEnd, JobPhase, JobView, what_became


def over(ending: JobEnd | None, **known: float) -> JobView:
    return JobView("1", JobPhase.OVER, ending, **known)


@pytest.mark.parametrize(
    ("view", "word", "cancelled", "ending"),
    [
        (over(JobEnd.PREEMPTED), "", False, JobEnd.PREEMPTED),
        (over(JobEnd.PREEMPTED), "", True, JobEnd.PREEMPTED),
        # It left within its grace period: the scheduler calls that completed, but had announced the preemption.
        (over(JobEnd.COMPLETED, preempt_s=100.0), "", False, JobEnd.PREEMPTED),
        (over(JobEnd.COMPLETED), "signal USR1", False, JobEnd.PREEMPTED),
        (over(JobEnd.FAILED), "signal TERM", False, JobEnd.PREEMPTED),
        (over(JobEnd.CANCELLED), "signal TERM", False, JobEnd.CANCELLED),
        (over(JobEnd.COMPLETED), "signal TERM", True, JobEnd.CANCELLED),
        (over(JobEnd.COMPLETED), "wall time", False, JobEnd.WALLTIME),
        (over(JobEnd.WALLTIME), "signal USR1", False, JobEnd.WALLTIME),
        (over(JobEnd.NODE_FAILED), "", True, JobEnd.NODE_FAILED),
        (over(JobEnd.COMPLETED), "", False, JobEnd.COMPLETED),
        (over(JobEnd.FAILED), "", False, JobEnd.FAILED),
        (None, "", False, JobEnd.GONE),
        (None, "signal TERM", False, JobEnd.PREEMPTED),
        (None, "", True, JobEnd.CANCELLED),
    ],
)
def test_what_became_of_a_job(view: JobView | None, word: str, cancelled: bool, ending: JobEnd) -> None:
    assert what_became(view, word, 9000.0, cancelled=cancelled) is ending


@pytest.mark.parametrize(("ran_s", "ending"), [(3300, JobEnd.WALLTIME), (1800, JobEnd.PREEMPTED)])
def test_the_signal_that_announces_both_means_wall_time_only_near_its_end(ran_s: float, ending: JobEnd) -> None:
    view = over(JobEnd.COMPLETED, start_s=1000.0, end_s=1000.0 + ran_s, walltime_s=3600.0)
    assert what_became(view, "signal USR1", 9000.0, cancelled=False, lead_s=300) is ending
    alive = JobView("1", JobPhase.RUNNING, start_s=1000.0, end_s=4600.0, walltime_s=3600.0)
    assert what_became(alive, "signal USR1", 1000.0 + ran_s, cancelled=False, lead_s=300) is ending


def test_a_command_that_works() -> None:
    assert run_command([sys.executable, "-c", "print(3)"], 20) == "3\n"


def test_a_command_that_is_not_there() -> None:
    with pytest.raises(SubmitError, match=r"no-such-command is not on this machine's PATH"):
        run_command(["no-such-command"], 20)


def test_a_command_that_fails_is_told_in_its_own_words() -> None:
    with pytest.raises(SubmitError, match=r"failed: Invalid user id") as caught:
        run_command([sys.executable, "-c", "import sys; sys.exit('slurm: first\\nInvalid user id')"], 20)
    assert caught.value.transient


def test_a_command_that_hangs_is_killed_with_its_children(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    script = tmp_path / "squeue"
    script.write_text(f"#!/bin/sh\nsleep 600 &\necho $! > {pids}\nwait\n")
    script.chmod(0o755)
    with pytest.raises(SubmitError, match=r"did not answer within 0\.5 s"):
        run_command([str(script)], 0.5)
    child = int(pids.read_text())
    psutil.wait_procs([p for p in psutil.process_iter() if p.pid == child], timeout=10)
    assert not psutil.pid_exists(child) or psutil.Process(child).status() == psutil.STATUS_ZOMBIE
