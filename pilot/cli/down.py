"""``pilot down``: drain the pool."""

from __future__ import annotations

import time
from pathlib import Path

import click

from pilot.cli.asking import find_run_dir, json_option, pool_at, run_dir_option, to_json
from pilot.cli.numbers import FiniteRange
from pilot.core.errors import PilotError
from pilot.observation.words import node_count


@click.command("down")
@click.option("--limit-s", type=FiniteRange(min=0), default=300.0, show_default=True, help="Timeout in seconds.")
@run_dir_option
@json_option
def command(run_dir: Path | None, limit_s: float, as_json: bool) -> None:
    """Shut the pool down: trainers write a checkpoint, pilots leave, jobs end, and the coordinator exits.

    \b
    Example:
      pilot down
    """
    from pilot.agent import workdir

    root = find_run_dir(run_dir)
    told = pool_at(root).down()
    if not as_json:
        click.echo(f"draining {node_count(told.nodes)} ({root})")
    try:
        wait_until_gone(root, limit_s)
    except KeyboardInterrupt:
        click.echo(f"the pool keeps draining; pilot down --run-dir {root} waits for it", err=True)
        raise
    workdir.sweep()
    refuse_disorder(root)
    click.echo(
        to_json(told) if as_json else "down: trainers are saved, nothing is left running; pilot up continues with them"
    )


def wait_until_gone(root: Path, limit_s: float) -> None:
    """Wait until no coordinator owns the run directory; :class:`PilotError` if one still does after ``limit_s``."""
    from pilot.io.rundir import RunDir, owner

    deadline = time.monotonic() + limit_s
    while owner(RunDir(root)) is not None:
        if time.monotonic() > deadline:
            raise PilotError(
                f"the pool is still draining after {limit_s:g} s (log: {root / 'coordinator.log'}); "
                "run pilot down again to keep waiting",
                transient=True,
            )
        time.sleep(0.1)


def refuse_disorder(root: Path) -> None:
    """:class:`PilotError` if the ended coordinator's report is missing, or says that anything is left or lost."""
    from pilot.io import ended
    from pilot.io.rundir import RunDir

    rundir = RunDir(root)
    how = ended.load(rundir.ended)
    problems = how.problems() if how is not None else ["it was killed before it could report what is left"]
    if problems:
        raise PilotError(f"the coordinator has ended, but: {'; '.join(problems)}; its log is {rundir.log}")
