"""Descriptors that can be read, whatever their numbers; and the cores that a process may use."""

from __future__ import annotations

import fcntl
import os
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from pilot.host import system
from pilot.host.system import readable

FIRST_THAT_SELECT_REFUSES = 1024


@pytest.fixture
def high() -> Iterator[tuple[int, int]]:
    """A pipe whose read end has a number too high for ``select.select``."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = FIRST_THAT_SELECT_REFUSES + 8
    if hard != resource.RLIM_INFINITY and hard < wanted:
        pytest.skip(f"this machine allows {hard} open files")
    if soft != resource.RLIM_INFINITY:
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    low, writing = os.pipe()
    reading = fcntl.fcntl(low, fcntl.F_DUPFD_CLOEXEC, FIRST_THAT_SELECT_REFUSES)
    os.close(low)
    yield reading, writing
    os.close(reading)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_high_descriptor_is_waited_for_and_its_end_is_seen(high: tuple[int, int]) -> None:
    reading, writing = high
    assert readable([reading], 0.0) == []
    os.write(writing, b"x")
    assert readable([reading]) == [reading]
    assert os.read(reading, 1) == b"x"
    os.close(writing)
    assert readable([reading]) == [reading]


def put(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_a_job_has_the_least_quota_of_its_control_group_and_those_above(tmp_path: Path) -> None:
    put(tmp_path / "user/job/cpu.max", "max 100000\n")
    put(tmp_path / "user/cpu.max", "250000 100000\n")
    put(tmp_path / "cpu,cpuacct/slurm/cpu.cfs_quota_us", "400000\n")
    put(tmp_path / "cpu,cpuacct/slurm/cpu.cfs_period_us", "100000\n")
    put(tmp_path / "cpu,cpuacct/cpu.cfs_quota_us", "-1\n")
    put(tmp_path / "cpu,cpuacct/cpu.cfs_period_us", "100000\n")
    groups = "4:memory:/else\n3:cpu,cpuacct:/slurm/step\n0::/user/job\n"
    assert sorted(system.cgroup_quotas(groups, tmp_path)) == [2.5, 4.0]
    assert list(system.cgroup_quotas("2:cpuacct:/slurm\n0::/no/such/group\n", tmp_path)) == []


def test_kills_for_lack_of_memory_are_those_of_the_control_group_or_else_of_the_host(tmp_path: Path) -> None:
    host = tmp_path / "vmstat"
    put(host, "nr_free_pages 8\noom_kill 7\n")
    assert system.oom_kills("0::/job\n", tmp_path, host) == 7
    put(tmp_path / "job/memory.events", "low 0\noom 4\noom_kill 3\n")
    assert system.oom_kills("0::/job\n", tmp_path, host) == 3
    put(tmp_path / "memory/old/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n")
    assert system.oom_kills("4:memory:/old\n0::/job\n", tmp_path, host) == 2
    assert system.oom_kills("", tmp_path / "nowhere", tmp_path / "no file") == 0


def test_it_is_at_most_the_affinity_and_at_least_one() -> None:
    assert 1 <= system.usable_cores() <= len(os.sched_getaffinity(0))
