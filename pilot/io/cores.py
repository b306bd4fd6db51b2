"""How many cores this process may use; in a batch job or container, that can be far fewer than the machine has."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path


def usable_cores() -> int:
    """Cores that this process may use, given its CPU affinity and the quotas of its control groups; at least 1."""
    groups = Path("/proc/self/cgroup").read_text()
    quotas = cgroup_quotas(groups, Path("/sys/fs/cgroup"))
    return max(1, int(min([float(len(os.sched_getaffinity(0))), *quotas])))


def cgroup_quotas(groups: str, root: Path) -> Iterator[float]:
    """The quota, in cores, of a process's control group and of each parent group that has one.

    ``groups`` is the content of ``/proc/<pid>/cgroup``, ``root`` where the groups are mounted (versions 1 and 2).
    """
    for line in groups.splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        group = root / controllers / path.lstrip("/")
        for folder in (group, *group.parents):
            yield from _quota(folder)


def _quota(folder: Path) -> Iterator[float]:
    """A group's quota; nothing if it has none, or if we may not read it."""
    try:
        if (folder / "cpu.max").is_file():
            quota, period = (folder / "cpu.max").read_text().split()
        else:
            quota, period = ((folder / f"cpu.cfs_{name}_us").read_text().strip() for name in ("quota", "period"))
    except OSError:
        return
    if quota not in ("max", "-1"):
        yield int(quota) / int(period)
