"""What we rely on in Parsl's (pinned) providers: the scripts that they write, and what they do on submit."""

from __future__ import annotations

import os
import re
import shlex
import signal
import socket
import subprocess
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from launchers.steps import agent_command, directives
from pilot.core.errors import SiteError, SubmissionRefused, SubmitError
from pilot.host.proc import kill_marked, marked
from pilot.provisioning import provider as provider_module
from pilot.provisioning.provider import PilotProvider, make_provider
from pilot.provisioning.scheduler import JobEnd
from pilot.provisioning.scheduler_local import LocalQueue
from pilot.site.site import Site
from pilot.site.site_files import SiteFile
from tests.golden import check

LIMIT_S = 20.0

SLURM = Site(
    name="slurm",
    scheduler="slurm",
    partition="preempt",
    qos="low",
    account="abc",
    walltime="02:30:00",
    cores_per_node=64,
    launcher="srun",
    notice_signal="USR1",
    notice_lead_s=300,
    scheduler_options="#SBATCH --constraint=gpu",
    prologue="module load conda",
    python="/opt/venv/bin/python",
    interface="hsn0",
)
PBS = Site(
    name="pbs",
    scheduler="pbspro",
    queue="preemptable",
    account="abc",
    walltime="72:00:00",
    cores_per_node=64,
    select_options="system=polaris",
    scheduler_options="#PBS -l filesystems=home:eagle",
    python="/opt/venv/bin/python",
)
LSF = Site(
    name="lsf",
    scheduler="lsf",
    queue="killable",
    account="abc",
    launcher="jsrun",
    requeue=True,
    notice_signal="URG",
    notice_lead_s=120,
    python="/opt/venv/bin/python",
)
MANY = SLURM.replace(
    name="many", nodes_per_pilot=4, notice_signal=None, exclusive=False, cores_per_node=None, fabric="cxi"
)
PALS = PBS.replace(name="pals", nodes_per_pilot=2, launcher="pals")
SHELL = SLURM.replace(name="shell", launcher="simple")
LOCAL = Site(name="local", scheduler="local", python="/opt/venv/bin/python", interface="lo")


def of(site: Site, script_dir: Path = Path("/run/pilots"), hook: Any = None) -> PilotProvider:
    return PilotProvider(SiteFile(site, Path("x.py"), hook), script_dir)


@pytest.mark.parametrize("site", [SLURM, MANY, SHELL, PBS, PALS, LSF, LOCAL], ids=lambda site: site.name)
def test_the_script_that_would_be_submitted(site: Site) -> None:
    script = of(site).script(agent_command(site, "/run/connection.json"), "pilot-0123456789")
    check(f"parsl-{site.name}.sh", re.sub(r"(pilot-0123456789)\.[\d.]*\d", r"\1.TIME", script))


def test_a_shorter_wall_time_is_in_the_script() -> None:
    script = of(SLURM).script("true", "x", walltime_s=1234)
    assert "#SBATCH --time=20" in script
    assert "+ 1200 ))" in script


def test_pbs_may_shorten_a_pilot_and_no_script_of_ones_own() -> None:
    site = PBS.replace(walltime_min="00:30:00")
    script = of(site).script("true", "x", walltime_s=site.walltime_s)
    lines = ["#PBS -l min_walltime=00:30:00", "#PBS -l max_walltime=72:00:00"]
    assert set(lines) < set(script.splitlines())
    assert not set(lines) & set(directives(site, own=True))
    assert "min" not in of(SLURM.replace(walltime_min="00:30:00")).script("true", "x", walltime_s=1200).lower()


def test_showing_a_script_submits_nothing_and_leaves_no_file(tmp_path: Path) -> None:
    of(LOCAL, tmp_path).script("touch submitted", "x")
    assert list(tmp_path.iterdir()) == []


def test_a_sites_own_provider_is_used() -> None:
    def provider(site: Site) -> Any:
        ours = make_provider(site)
        ours.scheduler_options += "#SBATCH --comment=ours\n"
        return ours

    assert "#SBATCH --comment=ours" in of(SLURM, hook=provider).script("true", "x")


def test_a_provider_that_does_not_write_scripts_cannot_show_one() -> None:
    class Silent:
        def _write_submit_script(self) -> None:
            """Never called."""

        def submit(self, *_: object) -> str:
            return "1"

    with pytest.raises(SiteError, match="cannot show its script"):
        of(SLURM, hook=lambda _: Silent()).script("true", "x")


def test_making_a_provider_asks_nobody_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a provider opened a connection")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    for site in (SLURM, PBS, LSF, LOCAL):
        assert make_provider(site).nodes_per_block == 1


def command(folder: Path, name: str, script: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/bash\n{script}\n")
    path.chmod(0o755)


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for stand-ins of scheduler commands, first in the PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return folder


@pytest.mark.parametrize(
    ("site", "name", "says", "job"),
    [
        (SLURM, "sbatch", "Submitted batch job 4711", "4711"),
        (PBS, "qsub", "4711.pbs-01", "4711.pbs-01"),
        (LSF, "bsub", "Job <4711> is submitted to queue <killable>.", "4711"),
    ],
)
def test_the_job_id_is_read(site: Site, name: str, says: str, job: str, commands: Path, tmp_path: Path) -> None:
    command(commands, name, f"echo '{says}'")
    assert of(site, tmp_path).submit("true", "x") == job


@pytest.mark.parametrize(("site", "name"), [(SLURM, "sbatch"), (PBS, "qsub"), (LSF, "bsub")])
def test_a_refusal_is_quoted(site: Site, name: str, commands: Path, tmp_path: Path) -> None:
    command(
        commands,
        name,
        "echo '%s: first line' >&2; echo '%s: error: Job violates policy' >&2; exit 1".replace("%s", name),
    )
    with pytest.raises(SubmissionRefused, match=r"submission failed: first line; Job violates policy$") as caught:
        of(site, tmp_path).submit("true", "x")
    assert caught.value.transient
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("site", "name", "says", "excluding"),
    [
        (SLURM, "sbatch", "Submitted batch job 1", ["#SBATCH --exclude=n1,n2"]),
        (
            SLURM.replace(scheduler_options="#SBATCH --exclusive -x m1\n#SBATCH --mem=4G --exclude='m2,m3'"),
            "sbatch",
            "Submitted batch job 1",
            ["#SBATCH --mem=4G --exclude='m2,m3'", "#SBATCH --exclude=m1,m2,m3,n1,n2"],
        ),
        (PBS, "qsub", "1.pbs-01", []),
        (LSF, "bsub", "Job <1> is submitted to queue <q>.", ["#BSUB -R \"select[hname!='n1' && hname!='n2']\""]),
    ],
)
def test_a_job_is_kept_from_nodes(
    site: Site, name: str, says: str, excluding: list[str], commands: Path, tmp_path: Path
) -> None:
    command(commands, name, f"echo '{says}'")
    provider = of(site, tmp_path)
    for without in ((), ("n2", "n1"), ()):
        provider.submit("true", "x", without=without)
        script = max((path for path in tmp_path.glob("x.*")), key=lambda path: path.stat().st_mtime_ns).read_text()
        lines = [line for line in script.splitlines() if "--exclude" in line or "hname" in line]
        assert lines == (excluding if without else excluding[:-1])


def test_a_scheduler_that_hangs_is_given_up(commands: Path, tmp_path: Path) -> None:
    command(commands, "sbatch", "exec sleep 600")
    with pytest.raises(SubmitError, match="timed out after 1 seconds"):
        of(SLURM.replace(command_timeout_s=1), tmp_path).submit("true", "x")
    for process in psutil.Process().children(recursive=True):
        process.kill()


def test_a_local_job_runs_and_is_cancelled_with_one_term_to_its_group(tmp_path: Path) -> None:
    provider = of(LOCAL, tmp_path)
    log = tmp_path / "log"
    agent = f"trap 'echo got TERM >> {log}' TERM; echo ready >> {log}; while :; do sleep 0.05; done"
    job = provider.submit(f"bash -c {shlex.quote(agent)}", "x")
    try:
        _until(lambda: "ready" in _text(log))
        assert LocalQueue("x", provider.output_of).cancel([job]) == [job]
        _until(lambda: "got TERM" in _text(log))
        assert marked(f"PILOT_JOB={job}")
    finally:
        assert kill_marked(f"PILOT_JOB={job}") == []
    assert _text(log).count("got TERM") == 1


def test_the_output_of_a_local_job_is_beside_its_exit_status(tmp_path: Path) -> None:
    provider = of(LOCAL, tmp_path)
    job = provider.submit("bash -c 'echo $PILOT_JOB; echo no >&2; exit 3'", "x")
    output = provider.output_of(job)
    assert output is not None
    _until(lambda: _text(output.with_suffix(".ec")).strip() == "3")
    assert output.read_text() == "no\n"
    assert output.with_suffix(".out").read_text().strip() == job
    queue = LocalQueue("x", provider.output_of)
    assert queue.poll([job], 0.0).jobs[job].ending is JobEnd.FAILED
    output.with_suffix(".ec").unlink()
    assert queue.poll([job], 0.0).jobs[job].ending is JobEnd.GONE, "it is over, with or without its status"


def test_a_local_pilot_is_no_rank_and_no_job_of_what_its_coordinator_runs_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("SLURM_JOB_ID", "SLURM_CPU_BIND", "PMI_RANK", "PBS_JOBID", "SLURM_CONF"):
        monkeypatch.setenv(name, "7")
    provider = of(LOCAL, tmp_path)
    provider.prepare()
    output = provider.output_of(provider.submit("bash -c 'set | grep -E ^[A-Z]+_[A-Z_]+=7$ >&2; echo end >&2'", "x"))
    assert output is not None
    _until(lambda: _text(output).endswith("end\n"))
    assert output.read_text() == "SLURM_CONF=7\nend\n"


def test_jobs_are_forgotten_after_a_while(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provider_module, "OUTPUTS_KEPT", 2)
    made: list[Any] = []

    def hook(site: Site) -> Any:
        made.append(make_provider(site))
        return made[-1]

    provider = of(LOCAL, tmp_path, hook)
    jobs = [provider.submit("true", f"x{number}") for number in range(3)]
    assert [provider.output_of(job) is not None for job in jobs] == [False, True, True]
    assert [p.resources for p in made] == [{}]


def test_cancelling_a_local_job_that_is_over_harms_nobody(tmp_path: Path) -> None:
    provider = of(LOCAL, tmp_path)
    job = provider.submit("true", "x")
    _until(lambda: not psutil.pid_exists(int(job)))
    got: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: got.append(number))
    try:
        LocalQueue("x", provider.output_of).cancel([job])
    finally:
        signal.signal(signal.SIGTERM, before)
    assert got == []


def test_the_child_of_a_local_jobs_shell_is_no_job_before_it_executes_the_script(tmp_path: Path) -> None:
    """Under load a poll sees it in that moment, which a subshell prolongs here."""
    jobs = f"{{ (sleep 600; :); : {tmp_path}/x.1.sh; }} >/dev/null 2>&1 & echo $!"
    job = subprocess.run(["bash", "-c", jobs], capture_output=True, text=True, process_group=0).stdout.strip()
    try:
        _until(lambda: len(psutil.Process(int(job)).children(recursive=True)) == 2)
        assert list(LocalQueue("x", lambda _: None).poll([], 0.0).jobs) == [job]
    finally:
        os.killpg(os.getpgid(int(job)), signal.SIGKILL)


def _text(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def _until(true: Any) -> None:
    end_s = time.monotonic() + LIMIT_S
    while not true():
        assert time.monotonic() < end_s, "not within the deadline"
        time.sleep(0.02)
