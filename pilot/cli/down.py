"""``pilot down``: drain the pool."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import click

from pilot.cli.asking import AT_REST, in_running_pool, pool_at
from pilot.cli.options import FiniteRange, json_option, to_json
from pilot.core.errors import PilotError
from pilot.core.trainer.trainer import Phase
from pilot.history.words import node_count

TELL_EVERY_S = 5.0
"""How often to ask what a drain is waiting for."""


@click.command("down")
@click.option("--limit-s", type=FiniteRange(min=0), default=300.0, help="Timeout in seconds.")
@in_running_pool
@json_option
def command(root: Path, limit_s: float, as_json: bool) -> None:
    """Shut the pool down: trainers write a checkpoint, pilots leave, jobs end, and the coordinator exits.

    \b
    Example:
      pilot down
    """
    from pilot.agent import workdir

    answer = pool_at(root).down()
    if not as_json:
        click.echo(f"draining {node_count(answer.nodes)} ({root})")
    try:
        wait_until_gone(root, limit_s, None if as_json else click.echo)
    except KeyboardInterrupt:
        click.echo(f"the pool keeps draining; pilot down --run-dir {root} waits for it", err=True)
        raise
    workdir.sweep()
    refuse_disorder(root)
    done = "down: trainers are saved, nothing is left running; pilot up continues with them"
    click.echo(to_json(answer) if as_json else done)


def wait_until_gone(root: Path, limit_s: float, tell: Callable[[str], None] | None = None) -> None:
    """Wait until no coordinator owns the run directory; :class:`PilotError` if one still does after ``limit_s``.

    ``tell`` is called with what the drain is waiting for, when it has taken a while and whenever that changes.
    """
    from pilot.rundir.rundir import RunDir, owner

    deadline = time.monotonic() + limit_s
    ask_s, answer = time.monotonic() + TELL_EVERY_S, ""
    while owner(RunDir(root)) is not None:
        if tell is not None and time.monotonic() > ask_s:
            ask_s, waits = time.monotonic() + TELL_EVERY_S, _waits_for(root)
            if waits not in ("", answer):
                answer = waits
                tell(f"waiting for {waits}")
        if time.monotonic() > deadline:
            raise PilotError(
                f"the pool is still draining after {limit_s:g} s (log: {root / 'coordinator.log'}); "
                "run pilot down again to keep waiting",
                transient=True,
            )
        time.sleep(0.1)


def _waits_for(root: Path) -> str:
    """What the drain is waiting for, a clause each; "" if the coordinator does not answer: it is about to exit."""
    try:
        status = pool_at(root, TELL_EVERY_S).status()
    except PilotError:
        return ""
    idle = AT_REST | {Phase.QUEUED}
    trainers = [f"{t.trainer} ({t.waits})" for t in status.trainers if t.waits and t.phase not in idle]
    nodes = [f"{node_count(len(status.pool))} to leave"] if status.pool else []
    return "; ".join(trainers or nodes or ["its jobs to end"])


def refuse_disorder(root: Path) -> None:
    """:class:`PilotError` if the ended coordinator's report is missing, or says that anything is left or lost."""
    from pilot.rundir.rundir import RunDir, read_end

    rundir = RunDir(root)
    how = read_end(rundir.ended)
    problems = how.problems() if how is not None else ["it was killed before it could report what is left"]
    if problems:
        raise PilotError(f"the coordinator has ended, but: {'; '.join(problems)}; its log is {rundir.log}")
