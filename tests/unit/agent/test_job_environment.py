"""What a pilot knows about itself."""

from __future__ import annotations

import platform
import socket
import subprocess
import sys
from importlib import metadata

import pytest

from pilot.agent import job_environment
from pilot.agent.workers import threads
from pilot.core.errors import UserError
from pilot.site import addresses


def test_slurm_pbs_and_lsf_name_their_jobs() -> None:
    none = job_environment.job_environment({})
    slurm = {
        "SLURM_JOB_ID": "7",
        "SLURM_RESTART_COUNT": "2",
        "SLURMD_NODENAME": "n5",
        "SLURM_JOB_END_TIME": "1700000000",
    }
    assert job_environment.job_environment(slurm) == job_environment.JobEnvironment("7", 2, "n5", 1700000000.0)
    assert job_environment.job_environment({"PBS_JOBID": "12.server"}).job == "12.server"
    assert job_environment.job_environment({"LSB_JOBID": "9"}) == job_environment.JobEnvironment(
        "9", 0, none.host, None
    )
    assert job_environment.job_environment({"LSB_JOBID": "9", "LSB_RESTART": "Y"}).restart == 1
    assert (none.job, none.restart, none.walltime_end_s) == ("", 0, None)
    assert none.host == socket.gethostname().split(".")[0]


def test_the_nearest_word_on_the_wall_time_counts() -> None:
    environment = {"PILOT_WALLTIME_END": "20.5", "SLURM_JOB_END_TIME": "30"}
    assert job_environment.job_environment(environment).walltime_end_s == 20.5
    assert job_environment.job_environment(environment, walltime_end_s=10.0).walltime_end_s == 10.0
    with pytest.raises(UserError, match="PILOT_WALLTIME_END is 'noon'"):
        job_environment.job_environment({"PILOT_WALLTIME_END": "noon"})


def test_the_interface_towards_the_coordinator() -> None:
    assert addresses.interface_to("127.0.0.1", 5555) == "lo"
    assert addresses.interface_address("lo") == "127.0.0.1"
    with pytest.raises(UserError, match="this host has no network interface 'hsn9'; it has: "):
        addresses.interface_address("hsn9")
    with pytest.raises(UserError, match="no route to the coordinator at no"):
        addresses.interface_to("no.such.host.invalid", 5555)


def test_threads_follow_the_jobs_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3,2")
    assert threads(2) == 3
    monkeypatch.setenv("OMP_NUM_THREADS", "all")
    cores = threads(1)
    assert cores >= 1
    assert threads(cores) == threads(cores + 1) == 1


def test_versions_are_those_installed() -> None:
    found = job_environment.versions()
    assert found["Python"] == platform.python_version()
    assert found["torch"] == metadata.version("torch")


def test_a_package_that_is_not_installed_has_no_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_environment, "_DISTRIBUTIONS", ("no-such-thing", "numpy"))
    assert list(job_environment.versions()) == ["Python", "numpy"]


def test_no_package_is_imported_for_its_version() -> None:
    code = (
        "import sys; from pilot.agent import job_environment; job_environment.versions();"
        "print(*{'torch', 'numpy', 'mpi4py'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
