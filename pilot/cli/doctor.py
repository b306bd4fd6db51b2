"""``pilot doctor``: what would go wrong here, and how to fix it."""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pilot.cli.asking import site_run_dir_option
from pilot.cli.options import Count, FiniteRange, json_option, site_option, to_json

if TYPE_CHECKING:
    from pilot.doctor.finding import Finding

_COLOURS = {"ok": "green", "warn": "yellow", "fail": "red"}


@click.command("doctor")
@site_option
@click.option("--pilots", type=Count(), help="Also submit this many pilots and train across them.")
@click.option("--limit-s", type=FiniteRange(min=0), default=600.0, help="Timeout for these pilots.")
@site_run_dir_option
@json_option
def command(site: str, run_dir: Path | None, pilots: int | None, limit_s: float, as_json: bool) -> int:
    """Check this host and the site for what goes wrong in practice. Exit status 1 if something must be fixed.

    Checks MPI and its fabric, the solvers, limits on tasks and files, the run directory's file system (locks,
    checkpoints, space, quota), clocks, interfaces and ports, the scheduler and its queue. Only --pilots submits jobs:
    it then tests connections in both directions, a cold and a warm start and an allreduce over these nodes; reports
    their GPUs, NCCL's version, and the bandwidths between host and GPU and between the processes of a node; and, on a
    PBS queue that does not publish it, how long a job lives after TERM. Everything is removed afterwards.

    \b
    Examples:
      pilot doctor --site polaris
      pilot doctor --site polaris --pilots 2
    """
    from pilot.cli.doctor_pilots import try_kill_delay, try_pilots
    from pilot.doctor.checks import examine
    from pilot.doctor.finding import Findings
    from pilot.rundir.rundir import default_path
    from pilot.site.site_files import load_site_file

    site_file = load_site_file(site)
    loaded = site_file.site
    findings = []
    seen = examine(loaded, (run_dir or default_path(loaded.name)).absolute())
    if pilots is not None:
        seen = chain(seen, try_pilots(site, pilots, limit_s), try_kill_delay(site_file, limit_s))
    for finding in seen:
        findings.append(finding)
        if not as_json:
            _print(finding)
    if as_json:
        click.echo(to_json(Findings(findings=findings)))
    return 1 if any(finding.grade == "fail" for finding in findings) else 0


def _print(finding: Finding) -> None:
    remedy = f"; {finding.remedy}" if finding.remedy else ""
    grade = click.style(f"{finding.grade:4}", fg=_COLOURS[finding.grade])
    click.echo(f"{grade}  {finding.check:14}  {finding.seen}{remedy}")
