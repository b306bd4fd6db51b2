"""Check this host: MPI over the site's fabric, solvers, and enough processes and open files."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

from pilot import planners
from pilot.comm import mpich, world
from pilot.core.curves.curve import Curve
from pilot.core.errors import PilotError
from pilot.core.ids import TrainerId
from pilot.core.plan.problem import Candidate, PlanStatus, Problem
from pilot.doctor.finding import Finding, fail, ok, ok_if, warn
from pilot.site import host_limits
from pilot.site.site import Site

MPI_LIMIT_S = 60.0
TASKS_SPARE = 3
"""Safety factor: the user does other things on a login node, too."""
FILES_PILOTS = 640


def mpi(site: Site, _run_dir: Path) -> Iterator[Finding]:
    """Let two ranks on this host sum 8 MB over the provider and the interface that the site's groups use."""
    here = next((name for name in site.interfaces if name in psutil.net_if_addrs()), None)
    where = f"{site.fabric} on {here or 'any interface'}"
    try:
        times = json.loads(_sum_over(site.fabric, here))
    except (PilotError, ValueError) as error:
        yield fail(
            "MPI",
            f"two ranks over {where}: {error}",
            'set fabric="tcp" and an interface of this host in the site file, or install the mpich wheel',
        )
        return
    yield ok(
        "MPI", f"two ranks over {where}: up in {times['init_s']:.2f} s, 8 MB summed in {times['allreduce_s']:.3f} s"
    )


def _sum_over(provider: str, interface: str | None) -> str:
    """Output of rank 0 of :mod:`pilot.comm.allreduce_check`."""
    environment = mpich.environment(os.environ, interface=interface, provider=provider)
    done = world.run([sys.executable, "-P", "-m", "pilot.comm.allreduce_check"], 2, environment, MPI_LIMIT_S)
    if all(rank.returncode == 0 for rank in done):
        return done[0].stdout
    failed = next((rank for rank in done if rank.returncode != -signal.SIGKILL), None)
    if failed is None:
        raise PilotError(f"no answer in {MPI_LIMIT_S:g} s; does a firewall keep this host from connecting to itself?")
    lines = failed.stderr.strip().splitlines() or [f"exit status {failed.returncode}"]
    raise PilotError(next((line for line in lines if "error" in line or "unable" in line), lines[-1]).strip())


def solvers(_site: Site, _run_dir: Path) -> Iterator[Finding]:
    """Make a plan with each solver. Only the default one is required."""
    for name in planners.SOLVERS:
        started_s = time.monotonic()
        try:
            plan = planners.make("milp", name, limit_s=10.0)(_problem())
        except PilotError as error:
            finding = fail if name == planners.SOLVERS[0] else warn
            yield finding("solvers", str(error), f"needed for pilot up --solver {name}")
            continue
        seconds = time.monotonic() - started_s
        if plan.status is PlanStatus.OPTIMAL:
            yield ok("solvers", f"{name} made an optimal plan in {seconds:.2f} s")
        else:
            yield warn("solvers", f"{name} found no proven optimum in {seconds:.2f} s", "is this host very busy?")


def _problem() -> Problem:
    curve = Curve.of([(1, 1.0), (2, 1.9), (4, 3.5)])
    trainers = [Candidate(TrainerId(name), 0, 1, 4, curve, 20.0, 10.0) for name in ("a", "b")]
    return Problem(6, 120.0, tuple(trainers))


def tasks(site: Site, _run_dir: Path) -> Iterator[Finding]:
    """Check how many processes and threads this user may still start (``ulimit -u``, and the cgroup's ``pids.max``)."""
    room, need = host_limits.task_room(), host_limits.tasks_needed(site, None)
    if room is None:
        yield ok("task limits", "no limit on processes and threads")
        return
    seen = f"{room.left} more processes and threads allowed by {room.limit}; a pool needs {need} here"
    remedy = "end processes that you do not need, or run the coordinator inside a job"
    yield ok_if(room.left >= TASKS_SPARE * need, "task limits", seen, remedy, warn if room.left >= need else fail)


def open_files(site: Site, _run_dir: Path) -> Iterator[Finding]:
    """Check the hard limit on open files, to which the coordinator raises its soft one; each pilot takes one."""
    hard, need = host_limits.most_files(), host_limits.files_needed(site, FILES_PILOTS)
    seen = f"{hard} open files allowed; {FILES_PILOTS} pilots need {need}"
    remedy = "request a higher hard limit (ulimit -Hn), or run the coordinator inside a job"
    yield ok_if(hard >= need, "open files", seen, remedy, warn)
