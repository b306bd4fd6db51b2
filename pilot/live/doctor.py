"""``pilot doctor``: checks on this host what goes wrong in practice. Each check really does what will be done later."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from pilot.core.errors import PilotError
from pilot.io.site import Site
from pilot.live import doctor_files, doctor_host, doctor_site
from pilot.live.finding import Finding, fail

Check = Callable[[Site, Path], Iterable[Finding]]
"""Findings about a site and the run directory of its pool, which need not exist."""

CHECKS: dict[str, Check] = {
    "MPI": doctor_host.mpi,
    "solvers": doctor_host.solvers,
    "task limits": doctor_host.tasks,
    "open files": doctor_host.open_files,
    "run directory": doctor_files.storage,
    "clock": doctor_files.clock,
    "network": doctor_site.network,
    "scheduler": doctor_site.scheduler,
}


def examine(site: Site, run_dir: Path) -> Iterator[Finding]:
    """All findings, one check after the other. A check that cannot be made is a finding too."""
    for name, check in CHECKS.items():
        try:
            yield from check(site, run_dir)
        except PilotError as error:
            yield fail(name, str(error), "mend this first: the rest of this check was not made")
