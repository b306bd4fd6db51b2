"""Admins, sick nodes and a lying squeue on a real Slurm, with a trivial agent: jobs and queues, no training."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

import pytest

from pilot.provisioning.keeper import Keeper
from pilot.provisioning.retry import Troubled
from pilot.provisioning.scheduler import JobEnd
from pilot.site.site_files import load_site
from tests.crew import POLITE, Crew, with_crew
from tests.slurm.lab import Lab, LabConfig, missing_accounting

SITE = load_site("slurm_lab").replace(walltime_min=None, poll_s=1)
THREE = LabConfig(nodes=3)
SICK = 'if [ "$SLURMD_NODENAME" = {node} ]; then echo no space left on /scratch7 >&2; exit 1; fi'


@pytest.mark.parametrize("lab", [THREE], indirect=True)
@with_crew(POLITE, SITE)
async def test_holds_drains_and_downs_never_lead_to_too_many_jobs(keeper: Keeper, crew: Crew, lab: Lab) -> None:
    lab.run("scontrol", "update", "PartitionName=preempt", "State=DRAIN")
    keeper.want(2)
    await crew.until(lambda: keeper.status().trouble or keeper.status().pending, "refused, or it waits")
    lab.run("scontrol", "update", "PartitionName=preempt", "State=UP")
    await crew.until_running(2)
    lab.run("scontrol", "update", "PartitionName=preempt", "State=DOWN")
    keeper.want(3)
    await crew.until(lambda: "PartitionDown" in keeper.status().waits_for, "why it waits is reported")
    (waiting,) = [job for job in keeper.book.jobs if lab.state(job) == "PENDING"]
    lab.run("scontrol", "hold", waiting)
    lab.run("scontrol", "update", "PartitionName=preempt", "State=UP")
    await crew.until(lambda: "JobHeld" in keeper.status().waits_for, "that it is held is reported")
    lab.run("scontrol", "release", waiting)
    await crew.until_running(3)
    lab.run("scontrol", "update", f"NodeName={lab.nodes[0]}", "State=DOWN", "Reason=test")
    await crew.until(lambda: crew.endings() == [JobEnd.NODE_FAILED], "a node that is set down is reported")
    await crew.until(lambda: keeper.status().pending == 1, "its pilot is replaced")
    assert len(lab.queued()) <= 3
    # Its slurmd answers, so Slurm may have restored it by itself.
    lab.run("scontrol", "update", f"NodeName={lab.nodes[0]}", "State=RESUME", check=False)
    await crew.until_running(3)


@pytest.mark.parametrize("lab", [THREE], indirect=True)
@with_crew(POLITE, SITE)
async def test_a_replacement_of_a_suspended_pilot_goes_when_that_is_back(keeper: Keeper, crew: Crew, lab: Lab) -> None:
    """Slurm gives a suspended job's node away: the replacement may be running by the time the pilot is back."""

    def partition(state: str) -> None:
        lab.run("scontrol", "update", "PartitionName=preempt", f"State={state}")

    keeper.want(3)
    await crew.until_running(3)
    first = set(keeper.book.jobs)
    job = min(first)
    partition("DOWN")
    lab.run("scontrol", "suspend", job)
    await crew.until(lambda: (keeper.status().suspended, keeper.status().pending) == (1, 1), "a replacement waits")
    lab.run("scontrol", "resume", job)
    await crew.until(lambda: set(keeper.book.jobs) == first and keeper.status().running == 3, "it is back")
    partition("UP")
    lab.run("scontrol", "suspend", job)
    await crew.until(lambda: keeper.status().suspended == 1, "it is suspended again")
    await crew.until_running(3)
    (replacement,) = set(crew.present()) - first
    lab.run("scontrol", "resume", job)
    await crew.until(lambda: keeper.status().running == 4, "both run, on one node")
    keeper.want(3, spare=[replacement])
    await crew.until(lambda: set(keeper.book.jobs) == first, "the replacement goes")
    assert crew.endings() == [JobEnd.CANCELLED] * 2
    lab.run("scancel", job)
    await crew.until(lambda: crew.endings() == [JobEnd.CANCELLED] * 3, "cancelled by an admin")
    await crew.until_running(3)


@pytest.mark.parametrize("lab", [THREE], indirect=True)
@with_crew(POLITE, SITE.replace(command_timeout_s=2))
async def test_a_squeue_that_is_slow_fails_or_lies_never_leads_to_too_many_jobs(
    keeper: Keeper, crew: Crew, lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stand-in for squeue comes first on the PATH: the test scripts its answers."""
    folder = tmp_path / "bin"
    folder.mkdir()
    squeue = folder / "squeue"
    real = lab.run("which", "squeue").strip()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")

    def answers(text: str) -> None:
        squeue.write_text(f"#!/bin/bash\n{text}\n")
        squeue.chmod(0o755)

    answers(f'exec {real} "$@"')
    keeper.want(2)
    await crew.until_running(2)
    there = set(keeper.book.jobs)
    for text in ("sleep 60", "exit 1", "echo unreadable"):
        answers(text)
        await crew.until(lambda: keeper.status().trouble != "", f"{text} is reported")
    answers("exit 0")  # no jobs at all; their agents still answer
    until_s = time.monotonic() + 8
    while time.monotonic() < until_s:
        keeper.want(2, present=there)
        assert set(lab.run(real, "-h", "-o", "%A").split()) == there
        await asyncio.sleep(0.2)
    assert "whose agents still answer" in keeper.status().trouble
    keeper.want(4, present=there)  # the new ones are pending, and are reported gone again and again
    until_s = time.monotonic() + 15
    while time.monotonic() < until_s:
        assert len(lab.run(real, "-h", "-o", "%A").split()) <= 2 * 4 + 2
        await asyncio.sleep(0.2)
    answers(f'exec {real} "$@"')
    keeper.want(2)
    await crew.until(lambda: keeper.status().running == 2, "all is as it was")


@pytest.mark.parametrize("lab", [THREE], indirect=True)
@with_crew(POLITE, lambda given: SITE.replace(prologue=SICK.format(node=given["lab"].nodes[1])))
async def test_a_node_on_which_pilots_fail_gets_none_and_the_others_are_not_held_up(
    keeper: Keeper, crew: Crew, lab: Lab
) -> None:
    sick = lab.nodes[1]

    def joined() -> list[str]:
        jobs = crew.present()
        for job in jobs:
            keeper.registered(job)
        keeper.want(3, present=jobs)
        return jobs

    await crew.until(lambda: joined() and keeper.status().set_aside, "it is set aside")
    assert [aside.node for aside in keeper.status().set_aside] == [sick]
    await crew.until(lambda: len(joined()) == 2 and keeper.status().pending == 1, "two run, one waits")
    (aside,) = keeper.status().set_aside
    assert aside.reason.endswith(": no space left on /scratch7")
    (told,) = [event.text for event in crew.events if isinstance(event, Troubled) and "set aside" in event.text]
    assert told.startswith(f"{sick} is set aside for 10 min: ")
    lab.run("scancel", crew.present()[0])
    keeper.want(3)
    await crew.until(lambda: JobEnd.CANCELLED in crew.endings(), "another one ends")
    await crew.until(lambda: len(joined()) == 2, "its place is taken")
    assert not keeper.status().held_back
    failures = len(crew.failures())
    assert keeper.clear(sick)
    await crew.until(lambda: len(crew.failures()) > failures, "it is tried again")


@pytest.mark.parametrize("lab", [THREE], indirect=True)
@with_crew("sh -c 'echo python9: command not found on $SLURMD_NODENAME >&2; exit 127'", SITE)
async def test_where_all_pilots_fail_no_node_is_set_aside_and_the_cause_is_told_once(
    keeper: Keeper, crew: Crew, lab: Lab
) -> None:
    keeper.want(3)
    await crew.until(lambda: len(crew.failures()) >= 4, "some fail")
    assert keeper.status().set_aside == []
    await crew.until(lambda: keeper.status().held_back.startswith("waiting"), "it backs off")
    (told,) = [event.text for event in crew.events if isinstance(event, Troubled)]
    assert "python9: command not found on " in told
    assert keeper.status().trouble == told
    assert any(node in told for node in lab.nodes)


@pytest.mark.skipif(bool(missing_accounting()), reason=missing_accounting() or "it is there")
@with_crew(POLITE, SITE.replace(poll_s=2))
async def test_a_limit_on_submitted_jobs_is_learned_and_a_pilot_that_ends_is_replaced(
    keeper: Keeper, crew: Crew, lab: Lab
) -> None:
    lab.limit("MaxSubmitJobs=3")
    keeper.want(5)
    await crew.until(lambda: "AssocMaxSubmitJobLimit" in keeper.status().held_back, "the limit is learned")
    assert keeper.status().held_back.startswith("with 3 jobs of ours, the scheduler refused another one: ")
    await crew.until(lambda: keeper.status().running == 3, "as many as it allows")
    lab.run("scancel", min(keeper.book.jobs))
    await crew.until(lambda: crew.endings() == [JobEnd.CANCELLED], "one ends")
    await crew.until(lambda: keeper.status().running == 3, "it is replaced")
    assert "after failures" not in keeper.status().held_back, "it was no back-off"
    await crew.until(lambda: keeper.status().held_back.startswith("with 3 jobs"), "one more is refused again")
    assert keeper.status().trouble == ""
    lab.limit("MaxSubmitJobs=-1")
    await crew.until(lambda: keeper.status().running == 5, "another attempt finds that the limit is gone")
