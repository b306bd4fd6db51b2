"""``pilot down``: drain the pool."""

from __future__ import annotations

import time
from pathlib import Path

import click

from pilot.cli.asking import find_run_dir, json_option, pool_at, run_dir_option, to_json
from pilot.cli.numbers import FiniteRange
from pilot.core.errors import PilotError


@click.command("down")
@click.option("--limit-s", type=FiniteRange(min=0), default=300.0, show_default=True, help="Wait so long.")
@run_dir_option
@json_option
def command(run_dir: Path | None, limit_s: float, as_json: bool) -> None:
    """Drain: trainers pause and checkpoint, then pilots and jobs go, and the coordinator ends.

    \b
    Example:
      pilot down
    """
    from pilot.agent import workdir

    root = find_run_dir(run_dir)
    told = pool_at(root).down()
    if not as_json:
        click.echo(f"draining {told.nodes} nodes of {root}")
    try:
        wait_until_gone(root, limit_s)
    except KeyboardInterrupt:
        click.echo(f"the pool drains on without this command; pilot down --run-dir {root} waits for its end", err=True)
        raise
    workdir.sweep()
    refuse_disorder(root)
    click.echo(to_json(told) if as_json else "down: trainers are saved, nothing is left; pilot up goes on with them")


def wait_until_gone(root: Path, limit_s: float) -> None:
    """Wait until no coordinator owns the run directory; :class:`PilotError` where one still does after ``limit_s``."""
    from pilot.io.rundir import RunDir, owner

    deadline = time.monotonic() + limit_s
    while owner(RunDir(root)) is not None:
        if time.monotonic() > deadline:
            raise PilotError(
                f"the pool still drains after {limit_s:g} s; its log is {root / 'coordinator.log'}; "
                "call pilot down again to wait on",
                transient=True,
            )
        time.sleep(0.1)


def refuse_disorder(root: Path) -> None:
    """:class:`PilotError` where the coordinator, which has ended, says that something is left or lost, or nothing."""
    from pilot.io import ended
    from pilot.io.rundir import RunDir

    rundir = RunDir(root)
    how = ended.load(rundir.ended)
    problems = how.problems() if how is not None else ["it was killed before it could say what is left"]
    if problems:
        raise PilotError(f"the coordinator has ended, but: {'; '.join(problems)}; its log is {rundir.log}")
