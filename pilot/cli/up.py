"""``pilot up``: start the coordinator as a daemon."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, TextIO

import click
import msgspec

from pilot.cli.asking import site_run_dir_option
from pilot.cli.options import (
    POSITIVE,
    Count,
    FiniteRange,
    Parallel,
    answers,
    pilots_option,
    site_option,
    solve_limit_option,
)
from pilot.client.pools import pool_at
from pilot.core.errors import PilotError, UserError
from pilot.core.pool.pool import NODE_ORDER_NAMES
from pilot.core.trainer.trainer import AT_REST
from pilot.host.printable import printable
from pilot.planners import NAMES, usual_objective
from pilot.protocol.pool_status import PoolStatus
from pilot.rundir.rundir import RunDir, default_path, owner
from pilot.service.durability.supervisor import MODULE
from pilot.service.settings import Settings
from pilot.site.host_limits import shortages
from pilot.site.pilot_counts import Counts, check, parse, text_of
from pilot.site.site_files import load_site_file

START_LIMIT_S = 600.0
"""How long to wait for an answer. Starting from a snapshot takes seconds; replaying a month's journal takes minutes."""

DEFAULTS = Settings()


@click.command("up")
@site_option
@pilots_option("Pilots to keep in the queue (default: as many as the trainers can use)")
@click.option(
    "--only-nodes",
    metavar="PATTERN",
    help="Use only these nodes, e.g. nid[0001-0512] or x3001*,x3002* (default: as the site says).",
)
@click.option(
    "--planner",
    type=click.Choice(NAMES),
    metavar="NAME",
    default=DEFAULTS.planner,
    help=f"How nodes are shared out: {', '.join(NAMES)}.",
)
@click.option("--solver", metavar="NAME", default=DEFAULTS.solver, help="Solver of the MILP: cbc, glpk or highs.")
@solve_limit_option
@click.option(
    "--objective",
    metavar="NAME",
    help="What plans maximise: scaling-efficiency, throughput, priority, mean-completion-time or MODULE:FUNCTION"
    " (default: scaling-efficiency; with --planner flotilla, throughput).",
)
@click.option(
    "--t-fwd-s",
    type=POSITIVE,
    default=DEFAULTS.t_fwd_s,
    help="Forward-looking time: how long a plan is assumed to last. The longer, the more rescaling pays off.",
)
@click.option(
    "--decide-every-s",
    type=POSITIVE,
    help="Time between plans; meanwhile waiting trainers get idle nodes (default: plan at every event).",
)
@click.option(
    "--max-parallel-trainers",
    type=Parallel(),
    default="auto",
    help="Most trainers to run at once; auto: as many as the pool needs.",
)
@click.option(
    "--longest-wait-s",
    type=FiniteRange(min=0),
    default=DEFAULTS.longest_wait_s,
    help="After this time without nodes a trainer gets its minimum for as long; 0: no limit.",
)
@click.option(
    "--node-order",
    type=click.Choice(NODE_ORDER_NAMES),
    default=DEFAULTS.node_order,
    help="Which free nodes a trainer gets first: by name, by age, or by the site's topology those nearest to its own.",
)
@click.option(
    "--budget",
    type=POSITIVE,
    metavar="NODE-HOURS",
    help="Node-hours, as charged by the site, after which the pool drains (default: no limit).",
)
@click.option(
    "--ended-kept",
    type=Count(0),
    default=DEFAULTS.ended_kept,
    help="For a new pool: how many ended trainers stay listed; 'pilot report' shows all of them.",
)
@click.option("--fresh", is_flag=True, help="Start a new pool; the previous one is moved to earlier/.")
@click.option(
    "--foreground", is_flag=True, help="Stay in the foreground; Ctrl-C, or closing the terminal, drains the pool."
)
@site_run_dir_option
@answers
def command(
    run_dir: Path | None, site: str, only_nodes: str | None, foreground: bool, **settings: Any
) -> tuple[Any, ...]:
    """Start the coordinator and keep pilots submitted.

    It runs as a daemon on this host and keeps its files in the run directory. If a pool was here before, whether it was
    shut down or killed, it continues: unfinished trainers get nodes again, ended ones stay listed.

    \b
    Examples:
      pilot up --site polaris --pilots 8 --budget 500
      pilot up --site ./my_site.py --planner dp --objective throughput
      pilot up --site ./mixed.py --pilots a100:8 --pilots a40:16
      pilot up --site delta --run-dir ~/vision --only-nodes 'gpua[001-050]'
    """
    settings["objective"] = settings["objective"] or usual_objective(settings["planner"])
    there = load_site_file(site).on(only_nodes).site
    root = (run_dir or default_path(there.name)).absolute()
    check(there, counts := parse(settings.pop("pilots")))
    arguments = coordinator_command(root, site, counts, only_nodes, **settings)
    for line in shortages(there, None if counts is None else sum(counts.values())):
        click.echo(f"warning: {line}; 'pilot doctor' has details", err=True)
    if foreground:
        drains = "Ctrl-C, or closing the terminal, drains the pool"
        click.echo(f"the coordinator runs in the foreground; {drains}; log: {root}/coordinator.log")
        sys.stdout.flush()
        os.execv(arguments[0], arguments)
    answer = start(root, arguments, supervised=True)
    return answer, lambda: _show(answer, root)


def _show(answer: PoolStatus, root: Path) -> None:
    click.echo(f"pool {answer.coordinator} on site {answer.site} is up at {answer.endpoint}; files: {root}")
    if going_on := [trainer.trainer for trainer in answer.trainers if trainer.phase not in AT_REST]:
        click.echo(f"resumed: {', '.join(going_on)} (--fresh would have started a new pool)")
    for line in answer.damage:
        click.echo(f"warning: {printable(line)}", err=True)


def coordinator_command(
    root: Path, site: str, pilots: Counts | None, only_nodes: str | None = None, *, fresh: bool = False, **settings: Any
) -> list[str]:
    """The coordinator's command line: paths and plain settings, no secrets."""
    given = Settings(**{name: value for name, value in settings.items() if value is not None})
    command = [sys.executable, "-P", "-m", "pilot.service.daemon", "--run-dir", str(root), "--site", site]
    command += ["--settings", msgspec.json.encode(given).decode()]
    command += ["--pilots", text_of(pilots)] if pilots is not None else []
    command += ["--only-nodes", only_nodes] if only_nodes is not None else []
    return [*command, "--fresh"] if fresh else command


def start(root: Path, arguments: list[str], *, supervised: bool = False) -> PoolStatus:
    """Run the coordinator in its own session and wait until it answers; returns its status. If it is ``supervised``, it
    is restarted after a crash, also if we are killed meanwhile.

    Raises
    ------
    UserError, PilotError
        The coordinator exited; the error has its one-line message.
    """
    nowhere = subprocess.DEVNULL
    # Not a pipe: nobody reads before it exits, and the user's Python may print more than a pipe holds as it starts.
    with os.fdopen(os.memfd_create("stderr"), "r+", errors="replace") as errors:
        process = subprocess.Popen(arguments, stdin=nowhere, stdout=nowhere, stderr=errors, start_new_session=True)
        supervisor = _supervisor(process.pid, arguments) if supervised else None
        try:
            return _await(process, root, errors)
        except BaseException as error:
            interrupted = isinstance(error, KeyboardInterrupt)
            if supervisor is not None and (interrupted or process.poll() is not None):
                supervisor.kill()  # the user sees that it is not up
            if interrupted:
                process.terminate()  # it drains what it started
            raise
        finally:
            if supervisor is not None and supervisor.stdin is not None:
                supervisor.stdin.close()


def _supervisor(pid: int, arguments: list[str]) -> subprocess.Popen[bytes] | None:
    """Start a supervisor for the coordinator ``pid``, which begins when its standard input is closed: by us, or because
    we were killed. None if it cannot be started."""
    command = [sys.executable, "-P", "-m", MODULE, str(pid), *arguments, "--go-on"]
    nowhere = subprocess.DEVNULL
    try:
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=nowhere, stderr=nowhere, start_new_session=True)
    except OSError as error:
        click.echo(f"warning: the coordinator will not be restarted if it crashes: {error.strerror}", err=True)
        return None


def _await(process: subprocess.Popen[bytes], root: Path, errors: TextIO) -> PoolStatus:
    deadline = time.monotonic() + START_LIMIT_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise _ended(process.returncode, errors)
        if (answer := _answer(root, process.pid)) is not None:
            return answer
        time.sleep(0.05)
    raise PilotError(
        f"the coordinator (process {process.pid}) has not answered in {START_LIMIT_S:g} s; it keeps running, "
        f"and may still be reading its journal, or it hangs; see {root}/coordinator.log",
        transient=True,
    )


def _answer(root: Path, pid: int) -> PoolStatus | None:
    """The status of the coordinator with this process id; None until it owns the run directory."""
    try:
        if owner(RunDir(root)) != pid or not (root / "connection.json").exists():
            return None
        return pool_at(root, timeout_s=1.0).status()
    except PilotError:
        return None


def _ended(status: int, errors: TextIO) -> PilotError:
    errors.seek(0)
    lines = errors.read().strip().splitlines()
    line = lines[-1].removeprefix("pilot: ") if lines else f"it exited with status {status}"
    return UserError(line) if status == UserError.exit_status else PilotError(line)
