"""``pilot doctor`` reports what is wrong, and only that."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace

import msgspec
import psutil
import pytest

from pilot.cli.main import run
from pilot.doctor import host_checks, site_checks, storage_checks
from pilot.doctor.checks import CHECKS
from pilot.doctor.finding import Finding, Findings, Grade
from pilot.rundir.rundir import Lock, RunDir
from pilot.site import host_limits
from pilot.site.site import Site

LOCAL = Site(name="here", scheduler="local", interface="lo")
SLURM = Site(name="there", scheduler="slurm", partition="preempt")


def _graded(findings: Iterable[Finding], grade: Grade) -> list[str]:
    found = list(findings)
    assert all(finding.remedy for finding in found if finding.grade is not Grade.OK)
    return [finding.seen for finding in found if finding.grade is grade]


def test_all_checks_are_made_here_and_nothing_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    assert run(["doctor", "--site", "local", "--run-dir", str(tmp_path / "pool"), "--json"]) == 0
    found = msgspec.json.decode(capsys.readouterr().out, type=Findings).findings
    assert {finding.check for finding in found} == set(CHECKS)
    assert not _graded(found, Grade.FAIL)
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_site_is_bad_input(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["doctor", "--site", "nowhere"]) == 2
    assert "unknown site 'nowhere'" in capsys.readouterr().err


def test_a_fabric_that_is_not_there(tmp_path: Path) -> None:
    (seen,) = _graded(host_checks.mpi(LOCAL.replace(fabric="nosuch"), tmp_path), Grade.FAIL)
    assert seen.startswith("two ranks over nosuch on lo: ")
    assert "\n" not in seen


def test_the_solvers_that_are_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    findings = list(host_checks.solvers(LOCAL, tmp_path))
    assert not _graded(findings, Grade.FAIL)
    assert any(seen.startswith("cbc made an optimal plan") for seen in _graded(findings, Grade.OK))


@pytest.mark.parametrize(("groups", "controller"), [("0::/user/me\n", ""), ("5:cpu:/\n3:pids:/user/me\n", "pids")])
def test_room_under_control_groups_counts_all_levels(tmp_path: Path, groups: str, controller: str) -> None:
    for folder, most, current in [("user", "100", "90"), ("user/me", "max", "7")]:
        group = tmp_path / controller / folder
        group.mkdir(parents=True)
        (group / "pids.max").write_text(f"{most}\n")
        (group / "pids.current").write_text(f"{current}\n")
    assert list(host_limits.cgroup_rooms(groups, tmp_path)) == [10]


def test_the_run_directory_may_not_exist_yet_and_nothing_is_left_in_it(tmp_path: Path) -> None:
    findings = list(
        storage_checks.storage(LOCAL.replace(checkpoint_dir=str(tmp_path / "c" / "d")), tmp_path / "a" / "b")
    )
    assert not _graded(findings, Grade.FAIL)
    assert not _graded(storage_checks.clock(LOCAL, tmp_path), Grade.WARN)
    assert {finding.check for finding in findings} == {"run directory", "checkpoint directory"}
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 8 MB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", disk], capture_output=True, text=True)
    if mounted.returncode:
        pytest.skip(f"a small file system cannot be mounted here: {mounted.stderr.strip()}")
    yield disk
    subprocess.run(["umount", disk], check=True)


def test_little_space(small_disk: Path) -> None:
    seen = _graded(storage_checks.storage(LOCAL, small_disk), Grade.FAIL)
    assert any("GB free" in line for line in seen)
    assert any("cannot allocate 64 MB" in line for line in seen)
    available = os.statvfs(small_disk)
    (small_disk / "ballast").write_bytes(bytes(available.f_bavail * available.f_frsize))
    seen = _graded(storage_checks.storage(LOCAL, small_disk), Grade.FAIL)
    assert any("the disk is full" in line for line in seen)


def test_a_run_directory_below_something_that_is_no_directory(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to("loop")
    for name in ("file", "loop"):
        (seen,) = _graded(storage_checks.storage(LOCAL, tmp_path / name / "pilot" / "local"), Grade.FAIL)
        assert seen.startswith(f"{tmp_path / name} is not a directory")


def test_a_quota_program_that_complains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "quota"
    program.write_text("#!/bin/sh\necho 'Block limit reached on /home'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert _graded(storage_checks.storage(LOCAL, tmp_path / "pool"), Grade.WARN) == [
        "quota reports: Block limit reached on /home"
    ]


def test_a_port_in_use_unless_by_this_pool(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        site = LOCAL.replace(port=other.getsockname()[1])
        (seen,) = _graded(site_checks.network(site, tmp_path), Grade.FAIL)
        assert seen.startswith(f"the coordinator cannot listen on 127.0.0.1, port {site.port}: ")
        pool = RunDir(tmp_path)
        lock = Lock(pool)
        try:
            assert not _graded(site_checks.network(site, tmp_path), Grade.FAIL)
        finally:
            lock.release()


@pytest.mark.parametrize(
    ("site", "grade", "seen"),
    [
        (LOCAL.replace(interface="nosuch0"), Grade.WARN, "this host has no interface nosuch0"),
        (LOCAL.replace(bind_interface="nosuch0"), Grade.FAIL, "nosuch0"),
        (
            *(SLURM.replace(bind_address="127.0.0.1"), Grade.FAIL),
            "pilots connect to 127.0.0.1 (127.0.0.1): on a node, this is the node itself",
        ),
        (SLURM.replace(bind_address="127.0.0.1", interface="lo"), Grade.FAIL, None),
    ],
)
def test_interfaces_and_addresses_that_nodes_cannot_use(
    site: Site, grade: Grade, seen: str | None, tmp_path: Path
) -> None:
    found = _graded(site_checks.network(site, tmp_path), grade)
    assert [seen is not None and seen in line for line in found] == ([True] if seen else [])


@pytest.mark.parametrize(
    ("named", "own", "seen"),
    [
        ("10.0.0.1", ["10.0.0.1"], None),
        ("10.0.0.1", ["10.0.0.1", "192.168.0.1"], "this host has 10.0.0.1, 192.168.0.1"),
        ("10.9.9.9", ["10.0.0.1"], "which is not one of this host's addresses: 10.0.0.1"),
    ],
)
def test_a_host_name_that_may_lead_elsewhere_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: str, own: list[str], seen: str | None
) -> None:
    monkeypatch.setattr(site_checks, "own_addresses", lambda: own)
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [(0, 0, 0, "", (named, 0))])
    site = LOCAL.replace(scheduler="slurm", bind_address="0.0.0.0", interface=None)
    found = _graded(site_checks.network(site, tmp_path), Grade.WARN)
    assert [seen is not None and seen in line for line in found] == ([True] if seen else [])


def test_locks_that_hold_on_one_host_only_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mounts = [
        SimpleNamespace(mountpoint="/", opts="rw"),
        SimpleNamespace(mountpoint=str(tmp_path), opts="rw,localflock"),
    ]
    monkeypatch.setattr(psutil, "disk_partitions", lambda **_: mounts)
    (seen,) = [line for line in _graded(storage_checks.storage(LOCAL, tmp_path / "run"), Grade.WARN) if "lock" in line]
    assert "are not seen by other hosts (mounted with localflock)" in seen


def test_the_shortages_of_a_host_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_limits, "task_room", lambda: host_limits.Room(128, "ulimit -u"))
    monkeypatch.setattr(host_limits, "most_files", lambda: 256)
    assert list(host_limits.shortages(SLURM, 100)) == []
    assert list(host_limits.shortages(LOCAL, 2)) == []
    assert list(host_limits.shortages(LOCAL, 4)) == [
        "a pool needs 184 processes and threads here, but only 128 more are allowed by ulimit -u"
    ]
    assert list(host_limits.shortages(SLURM, 300)) == [
        "the coordinator needs 364 open files, but only 256 are allowed (ulimit -Hn)"
    ]
