"""The checks of ``pilot doctor``. Each one actually does what a pool will do later."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from pilot.core.errors import PilotError, one_line
from pilot.doctor import host_checks, queue_checks, site_checks, storage_checks
from pilot.doctor.finding import Finding, fail
from pilot.site.site import Site

Check = Callable[[Site, Path], Iterable[Finding]]
"""A check takes a site and its pool's run directory, which need not exist, and returns findings."""

CHECKS: dict[str, Check] = {
    "MPI": host_checks.mpi,
    "solvers": host_checks.solvers,
    "task limits": host_checks.tasks,
    "open files": host_checks.open_files,
    "run directory": storage_checks.storage,
    "clock": storage_checks.clock,
    "network": site_checks.network,
    "scheduler": queue_checks.scheduler,
}


def examine(site: Site, run_dir: Path) -> Iterator[Finding]:
    """Run all checks in turn. A check that cannot be completed is also a finding."""
    for name, check in CHECKS.items():
        try:
            yield from check(site, run_dir)
        except (PilotError, OSError) as error:
            yield fail(name, one_line(str(error)), "fix this first: the rest of this check was skipped")
