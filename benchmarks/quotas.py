"""Limits of processes by the kernel's cpu controller (version 1 or 2 of control groups), for nodes of unequal speed."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
PERIOD_US = 10_000
"""Short, so that the pauses of a limited process are short."""
_FIRST = 100
"""Times the usual weight, so that other processes of the machine take as little as possible from a group's quota."""


class Quota:
    """A control group of processes that use at most ``cores`` of the machine."""

    def __init__(self, folder: Path, cores: float) -> None:
        self._folder = folder
        self._is_v1 = (folder / "cpu.cfs_quota_us").exists()
        self._write("cpu.shares" if self._is_v1 else "cpu.weight", _FIRST * (1024 if self._is_v1 else 100))
        self.limit(cores)

    def limit(self, cores: float) -> None:
        """Change the limit."""
        quota_us = round(cores * PERIOD_US)
        if self._is_v1:
            self._write("cpu.cfs_period_us", PERIOD_US)
            self._write("cpu.cfs_quota_us", quota_us)
        else:
            self._write("cpu.max", f"{quota_us} {PERIOD_US}")

    def add(self, pid: int) -> None:
        """Add a process with its threads."""
        self._write("cgroup.procs", pid)

    def _write(self, name: str, value: object) -> None:
        (self._folder / name).write_text(str(value))


@contextmanager
def quotas(cores: Iterable[float]) -> Iterator[list[Quota]]:
    """Groups with these limits. ``SystemExit`` with one line where that is impossible."""
    parent = next((ROOT / name for name in ("cpu", "cpu,cpuacct") if (ROOT / name / "cpu.shares").exists()), ROOT)
    folders = [parent / f"pilot-benchmark-{os.getpid()}-{number}" for number, _ in enumerate(cores)]
    try:
        yield [_made(folder, each) for folder, each in zip(folders, cores, strict=True)]
    finally:
        for folder in folders:
            with suppress(OSError):
                folder.rmdir()


def _made(folder: Path, cores: float) -> Quota:
    try:
        if folder.parent == ROOT:
            (ROOT / "cgroup.subtree_control").write_text("+cpu")
        folder.mkdir()
        return Quota(folder, cores)
    except OSError as error:
        raise SystemExit(f"this needs root, and the cpu controller of control groups: {error}") from None
