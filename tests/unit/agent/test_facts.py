"""What a pilot knows of itself."""

from __future__ import annotations

import socket

import pytest

from pilot.agent import facts
from pilot.core.errors import UserError


def test_slurm_pbs_and_lsf_name_their_jobs() -> None:
    none = facts.job_facts({})
    slurm = {
        "SLURM_JOB_ID": "7",
        "SLURM_RESTART_COUNT": "2",
        "SLURMD_NODENAME": "n5",
        "SLURM_JOB_END_TIME": "1700000000",
    }
    assert facts.job_facts(slurm) == facts.JobFacts("7", 2, "n5", 1700000000.0)
    assert facts.job_facts({"PBS_JOBID": "12.server"}).job == "12.server"
    assert facts.job_facts({"LSB_JOBID": "9"}) == facts.JobFacts("9", 0, none.host, None)
    assert facts.job_facts({"LSB_JOBID": "9", "LSB_RESTART": "Y"}).restart == 1
    assert (none.job, none.restart, none.walltime_end_s) == ("", 0, None)
    assert none.host == socket.gethostname().split(".")[0]


def test_the_nearest_word_on_the_wall_time_counts() -> None:
    environment = {"PILOT_WALLTIME_END": "20.5", "SLURM_JOB_END_TIME": "30"}
    assert facts.job_facts(environment).walltime_end_s == 20.5
    assert facts.job_facts(environment, walltime_end_s=10.0).walltime_end_s == 10.0
    with pytest.raises(UserError, match="PILOT_WALLTIME_END is 'noon'"):
        facts.job_facts({"PILOT_WALLTIME_END": "noon"})


def test_the_interface_towards_the_coordinator() -> None:
    assert facts.interface_to("tcp://127.0.0.1:5555") == "lo"
    assert facts.address_of("lo") == "127.0.0.1"
    with pytest.raises(UserError, match="no IPv4 address on network interface 'hsn9'; this host has "):
        facts.address_of("hsn9")
    with pytest.raises(UserError, match="is not tcp://host:port"):
        facts.interface_to("ipc:///tmp/x")


def test_threads_follow_the_jobs_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3,2")
    assert facts.threads(2) == 3
    monkeypatch.setenv("OMP_NUM_THREADS", "all")
    cores = facts.threads(1)
    assert cores >= 1
    assert facts.threads(cores) == facts.threads(cores + 1) == 1
