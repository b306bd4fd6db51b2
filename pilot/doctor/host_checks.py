"""What this host must have: MPI over the site's fabric, solvers, room for processes and open files."""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

from pilot import planners
from pilot.comm import mpich, world
from pilot.core.curve import Curve
from pilot.core.errors import PilotError
from pilot.core.ids import TrainerId
from pilot.core.problem import Candidate, PlanStatus, Problem
from pilot.doctor.finding import Finding, fail, ok, warn
from pilot.io.site import Site

MPI_LIMIT_S = 60.0
TASKS_FEW, TASKS_TOO_FEW = 128, 40
"""A coordinator with its solver needs about 40 tasks at once, a local pilot about as many."""
FILES_FEW = 1024


def mpi(site: Site, _run_dir: Path) -> Iterator[Finding]:
    """Two ranks on this host sum 8 MB over the provider and the interface that the site's groups use."""
    here = site.interface if site.interface in psutil.net_if_addrs() else None
    where = f"{site.fabric} on {here or 'any interface'}"
    try:
        told = json.loads(_sum_over(site.fabric, here))
    except (PilotError, ValueError) as error:
        yield fail(
            "MPI",
            f"two ranks over {where}: {error}",
            'set fabric="tcp" and an interface of this host in the site file, or install the wheel mpich',
        )
        return
    yield ok("MPI", f"two ranks over {where}: up in {told['init_s']:.2f} s, 8 MB summed in {told['allreduce_s']:.3f} s")


def _sum_over(provider: str, interface: str | None) -> str:
    """What rank 0 of :mod:`pilot.comm.allreduce_check` prints."""
    environment = mpich.environment(os.environ, interface=interface, provider=provider)
    done = world.run([sys.executable, "-P", "-m", "pilot.comm.allreduce_check"], 2, environment, MPI_LIMIT_S)
    if all(rank.returncode == 0 for rank in done):
        return done[0].stdout
    failed = next((rank for rank in done if rank.returncode != -signal.SIGKILL), None)
    if failed is None:
        raise PilotError(f"no answer in {MPI_LIMIT_S:g} s; does a firewall stop this host from reaching itself?")
    lines = failed.stderr.strip().splitlines() or [f"exit status {failed.returncode}"]
    raise PilotError(next((line for line in lines if "error" in line or "unable" in line), lines[-1]).strip())


def solvers(_site: Site, _run_dir: Path) -> Iterator[Finding]:
    """Each solver makes a plan. Only the default one must be there."""
    for name in planners.SOLVERS:
        started_s = time.monotonic()
        try:
            plan = planners.make("milp", name, limit_s=10.0)(_problem())
        except PilotError as error:
            finding = fail if name == planners.SOLVERS[0] else warn
            yield finding("solvers", str(error), f"it is needed for pilot up --solver {name}")
            continue
        seconds = time.monotonic() - started_s
        if plan.status is PlanStatus.OPTIMAL:
            yield ok("solvers", f"{name} made an optimal plan in {seconds:.2f} s")
        else:
            yield warn("solvers", f"{name} proved nothing in {seconds:.2f} s", "is this host very busy?")


def _problem() -> Problem:
    curve = Curve.of([(1, 1.0), (2, 1.9), (4, 3.5)])
    trainers = [Candidate(TrainerId(name), 0, 1, 4, curve, 20.0, 10.0) for name in ("a", "b")]
    return Problem(6, 120.0, tuple(trainers))


def tasks(_site: Site, _run_dir: Path) -> Iterator[Finding]:
    """Processes and threads that this user may still start (``ulimit -u``, and the control group's ``pids.max``)."""
    groups = Path("/proc/self/cgroup").read_text()
    limits = [(room, "the control group's pids.max") for room in cgroup_rooms(groups, Path("/sys/fs/cgroup"))]
    soft, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    if soft != resource.RLIM_INFINITY and os.geteuid() != 0:
        limits.append((soft - _own_tasks(), "ulimit -u"))
    if not limits:
        yield ok("task limits", "no limit on processes and threads")
        return
    room, name = min(limits)
    seen = f"{room} more processes and threads under {name}"
    if room >= TASKS_FEW:
        yield ok("task limits", seen)
    elif room >= TASKS_TOO_FEW:
        yield warn("task limits", seen, "end what you do not need here, or run the coordinator inside a job")
    else:
        yield fail("task limits", seen, "end what you do not need here, or run the coordinator inside a job")


def _own_tasks() -> int:
    uid = os.geteuid()
    found = psutil.process_iter(["uids", "num_threads"])
    return sum(p.info["num_threads"] or 1 for p in found if p.info["uids"] and p.info["uids"].real == uid)


def cgroup_rooms(groups: str, root: Path) -> Iterator[int]:
    """Tasks that may still be started in a process's control group, and in each above it that has a limit.

    ``groups`` is the text of ``/proc/<pid>/cgroup``, ``root`` where the groups are mounted (versions 1 and 2).
    """
    for line in groups.splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers not in ("", "pids"):
            continue
        group = root / controllers / path.lstrip("/")
        for folder in (group, *group.parents):
            if (folder / "pids.max").is_file() and (most := (folder / "pids.max").read_text().strip()) != "max":
                yield int(most) - int((folder / "pids.current").read_text())


def open_files(_site: Site, _run_dir: Path) -> Iterator[Finding]:
    """The coordinator holds a few descriptors per pilot; the soft limit may be raised up to the hard one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft >= FILES_FEW:
        yield ok("open files", f"{soft} open files")
    else:
        yield warn("open files", f"only {soft} open files", f"ulimit -n {min(hard, 4 * FILES_FEW)} before pilot up")
