"""``pilot doctor``: what would go wrong here, and how to fix it; with ``--pilots N`` a real pool shows whether the
site's pilots can work together."""

from __future__ import annotations

import importlib.util
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path

import click
from rich.text import Text

from pilot.cli.asking import site_run_dir_option
from pilot.cli.control import wait_until_gone
from pilot.cli.options import FiniteRange, json_option, pilots_option, site_option, to_json
from pilot.cli.rows import folded
from pilot.cli.show import console, show
from pilot.cli.up import coordinator_command, start
from pilot.client.launching import launch
from pilot.client.pools import pool_at
from pilot.core.errors import PilotError
from pilot.core.ids import TrainerId
from pilot.core.trainer.spec import Checking
from pilot.core.trainer.trainer import Phase
from pilot.doctor.finding import Finding, Findings, fail, ok
from pilot.host import private_folder
from pilot.protocol.pool_status import PoolStatus
from pilot.rundir import trainer_folder
from pilot.rundir.rundir import RunDir, default_path
from pilot.site.pilot_counts import Counts, check, parse
from pilot.site.site import BetweenNodes, Site
from pilot.site.site_files import SiteFile, load_site_file
from pilot.submission.submission import Submission

_COLOURS = {"ok": "green", "warn": "yellow", "fail": "red"}
POLL_S = 0.5
DRAIN_LIMIT_S = 300.0


@click.command("doctor")
@site_option
@pilots_option("Also submit this many pilots and train across them")
@click.option("--limit-s", type=FiniteRange(min=0), default=600.0, help="Timeout for these pilots.")
@site_run_dir_option
@json_option
def command(site: str, run_dir: Path | None, pilots: tuple[str, ...], limit_s: float, as_json: bool) -> int:
    """Check this host and the site for what goes wrong in practice. Exit status 1 if something must be fixed.

    Checks MPI and its fabric, the solvers, limits on tasks and files, the run directory's file system (locks,
    checkpoints, space, quota), clocks, interfaces and ports, the scheduler and its queue. Only --pilots submits jobs:
    it then tests connections in both directions, a cold and a warm start and an allreduce over these nodes, by MPI and
    as the site's between_nodes says; reports their GPUs, NCCL's version, and the bandwidths between host and GPU and
    between the processes of a node; and, on a PBS queue that does not publish it, how long a job lives after TERM.
    Everything is removed afterwards.

    \b
    Examples:
      pilot doctor --site polaris
      pilot doctor --site polaris --pilots 2
    """
    from pilot.doctor.checks import examine

    site_file = load_site_file(site)
    loaded, counts = site_file.site, parse(pilots)
    findings = []
    found = examine(loaded, (run_dir or default_path(loaded.name)).absolute())
    if counts is not None:
        check(loaded, counts)
        found = chain(found, try_pilots(site, loaded, counts, limit_s), try_kill_delay(site_file, limit_s))
    for finding in found:
        findings.append(finding)
        if not as_json:
            _print(finding)
    if as_json:
        click.echo(to_json(Findings(findings=findings)))
    return 1 if any(finding.grade == "fail" for finding in findings) else 0


def _print(finding: Finding) -> None:
    screen, remedy = console(), f"; {finding.remedy}" if finding.remedy else ""
    first, *more = folded(f"{finding.seen}{remedy}", screen.width, f"{finding.grade:4}  {finding.check:14}  ", " " * 22)
    line = Text(first)
    line.stylize(_COLOURS[finding.grade], 0, len(finding.grade))
    show(screen, [line, *map(Text, more)])


def try_pilots(named: str, site: Site, pilots: Counts, limit_s: float) -> Iterator[Finding]:
    """Submit ``pilots`` to the site, train across them twice, drain; yields what worked, or did not in ``limit_s``."""
    with _folder() as root:
        try:
            start(root, coordinator_command(root, named, pilots))
        except PilotError as error:
            yield fail("coordinator", str(error), "fix this first")
            return
        try:
            yield from _train_twice(root, sum(pilots.values()), time.monotonic() + limit_s, site.between_nodes)
        finally:
            pool_at(root).down()
            wait_until_gone(root, DRAIN_LIMIT_S)


def try_kill_delay(site_file: SiteFile, limit_s: float) -> Iterator[Finding]:
    """Measure how long a pilot lives after TERM, on a PBS queue that does not publish it."""
    from pilot.doctor.kill_delay import tried
    from pilot.doctor.queue_checks import shows_kill_delay

    if site_file.site.scheduler == "pbspro" and not shows_kill_delay(site_file.site):
        with _folder() as folder:
            yield from tried(site_file, folder, limit_s)


@contextmanager
def _folder() -> Iterator[Path]:
    """A folder beside the user's run directories, so that nodes see it exactly as they see a real one."""
    parent = default_path("doctor").parent
    private_folder.make(parent)
    with tempfile.TemporaryDirectory(prefix="doctor-", dir=parent) as folder:
        yield Path(folder)


def _train_twice(root: Path, pilots: int, deadline_s: float, between: BetweenNodes) -> Iterator[Finding]:
    """Train over MPI, and then as the site's nodes sum: if only the second attempt fails, that is why."""
    status = _until(root, deadline_s, lambda s: len(s.pool) >= pilots)
    if status is None:
        seen = pool_at(root).status()
        held = f"{len(seen.pool)} of {pilots} pilots started; {'; '.join(seen.remarks) or 'no message from the queue'}"
        yield fail("pilots", held, f"see {root / 'pilots'} and the queue: can the nodes reach {seen.endpoint}?")
        return
    took_s = max(node.joined_s for node in status.pool)
    yield ok("pilots", f"{pilots} started within {took_s:.1f} s, and each answers (connected in both directions)")
    yield from _train(root, "cold", "cold start (torch is imported)", pilots, deadline_s, "mpi")
    yield from _train(root, "warm", "warm start (from the fork server)", pilots, deadline_s, between)


def _train(
    root: Path, name: str, what: str, pilots: int, deadline_s: float, between: BetweenNodes
) -> Iterator[Finding]:
    script = importlib.util.find_spec("pilot.doctor.node_script")
    assert script is not None and script.origin is not None
    submitted = launch(Path(script.origin), [], sys.executable, (), between_nodes=between)
    given = Submission(name=name, min_nodes=pilots, max_nodes=pilots, launch=submitted, check=Checking.OFF)
    pool_at(root).submit(given)
    status = _until(root, deadline_s, lambda s: s.trainer(name).phase in (Phase.FINISHED, Phase.FAILED))
    row = (status or pool_at(root).status()).trainer(name)
    if row.phase is not Phase.FINISHED:
        seen = f"the test trainer is {row.phase}: {row.reason or '; '.join(row.remarks) or 'no group formed'}"
        remedy = "see docs/admin/bring-up.md on interface and fabric; bind MPI to an interface that all nodes share"
        if between != "mpi":
            remedy = (
                f"if the cold start over MPI worked, {between} does not: see docs/admin/gpu-nodes.md on between_nodes"
            )
        yield fail(name, seen, remedy)
        return
    assert row.started_s is not None  # it has finished
    if name == "cold":
        yield from _nodes(root, name)
    yield ok(name, f"{what}: {row.started_s - row.submitted_s:.1f} s until {pilots} nodes trained together")
    if (step_s := row.metrics["step_s"]) is not None:
        yield ok("allreduce", f"8 MB over {pilots} nodes by {between}: {1e3 * step_s:.1f} ms a step ({name} start)")


def _nodes(root: Path, trainer: str) -> Iterator[Finding]:
    """The test trainer's findings on each of its nodes: GPUs, and how fast data moves within the node."""
    with trainer_folder.held_here(RunDir(root).trainer(TrainerId(trainer)) / "logs") as logs:
        for file in sorted(logs.glob("node-*.json")):
            host, *lines = json.loads(file.read_bytes())
            for line in lines:
                yield ok("node", f"{host}: {line}")


def _until(root: Path, deadline_s: float, reached: Callable[[PoolStatus], bool]) -> PoolStatus | None:
    """The first status for which ``reached`` holds; None if the deadline passes first."""
    while time.monotonic() < deadline_s:
        status = pool_at(root).status()
        if reached(status):
            return status
        time.sleep(POLL_S)
    return None
