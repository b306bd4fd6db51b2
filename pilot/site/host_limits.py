"""This host's limits for one user (processes and threads, open files), and how much of them a pool needs."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from pilot.host.system import cgroups
from pilot.site.site import Site

COORDINATOR_TASKS = 24
"""The coordinator and its threads, the solver process and its solver, the supervisor, the scheduler's commands."""

AGENT_TASKS = 40
"""An agent, its guardian, fork server, rank processes, and a worker with PyTorch's threads."""

COORDINATOR_FILES = 64


@dataclass(frozen=True, slots=True, order=True)
class Room:
    """``left`` more are allowed by ``limit``."""

    left: int
    limit: str


def tasks_needed(site: Site, pilots: int | None) -> int:
    """Return the number of processes and threads of a pool on this host: with the scheduler ``local`` also those of its
    pilots (None: of one)."""
    here = (1 if pilots is None else pilots) * site.nodes_per_pilot if site.scheduler == "local" else 0
    return COORDINATOR_TASKS + AGENT_TASKS * here


def files_needed(site: Site, pilots: int) -> int:
    """Return the number of open files that the coordinator needs."""
    return COORDINATOR_FILES + pilots * site.nodes_per_pilot


def shortages(site: Site, pilots: int | None) -> Iterator[str]:
    """Yield a sentence for each limit of this host that is too low for ``pilots`` pilots (None: as many as are
    useful)."""
    room, tasks = task_room(), tasks_needed(site, pilots)
    if room is not None and room.left < tasks:
        yield f"a pool needs {tasks} processes and threads here, but only {room.left} more are allowed by {room.limit}"
    files, hard = files_needed(site, pilots or 0), most_files()
    if hard < files:
        yield f"the coordinator needs {files} open files, but only {hard} are allowed (ulimit -Hn)"


def task_room() -> Room | None:
    """Return the number of processes and threads that this user may still start; None: there is no limit."""
    groups = Path("/proc/self/cgroup").read_text()
    limits = [Room(room, "the control group's pids.max") for room in cgroup_rooms(groups, Path("/sys/fs/cgroup"))]
    soft, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    if soft != resource.RLIM_INFINITY and os.geteuid() != 0:
        limits.append(Room(soft - _own_tasks(), "ulimit -u"))
    return min(limits, default=None)


def most_files() -> int:
    """Return the most files that a process may open after raising its soft limit."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[1]


def cgroup_rooms(groups: str, root: Path) -> Iterator[int]:
    """Yield the number of tasks that may still start in a process's control group, and in each parent with a limit."""
    for folder in cgroups(groups, root, "pids"):
        if (folder / "pids.max").is_file() and (most := (folder / "pids.max").read_text().strip()) != "max":
            yield int(most) - int((folder / "pids.current").read_text())


def _own_tasks() -> int:
    uid = os.geteuid()
    found = psutil.process_iter(["uids", "num_threads"])
    return sum(p.info["num_threads"] or 1 for p in found if p.info["uids"] and p.info["uids"].real == uid)
