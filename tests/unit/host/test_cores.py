"""How many cores a process may use."""

from __future__ import annotations

import os
from pathlib import Path

from pilot.host import system


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


def test_it_is_at_most_the_affinity_and_at_least_one() -> None:
    assert 1 <= system.usable_cores() <= len(os.sched_getaffinity(0))
