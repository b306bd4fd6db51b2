"""Commands that change a running pool, or wait for it: each sends a request and prints the result."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from pilot.cli import candidates
from pilot.cli.asking import in_running_pool
from pilot.cli.options import FiniteRange, answers, each_trainer, json_option, to_json
from pilot.client.pools import pool_at
from pilot.client.trainers import phase_words, wait_for
from pilot.core.errors import PilotError, UserError
from pilot.core.pool.evidence import headline
from pilot.core.trainer.trainer import AT_REST, Phase
from pilot.history.words import node_count, pilots_words
from pilot.protocol.node_names import shortened
from pilot.protocol.requests import Phases, Scaled
from pilot.rundir.rundir import RunDir, owner, read_end
from pilot.site.pilot_counts import parse

ASK_EVERY_S = 5.0
"""Time between questions about the cause of a drain's wait."""


@click.command("cancel")
@in_running_pool
@each_trainer
def cancel(root: Path, trainer: str) -> tuple[Any, str]:
    """End TRAINERS now. Their checkpoints and logs stay.

    Their scripts get 30 s to end before they are killed, also those that run on after the training loop.

    \b
    Example:
      pilot cancel vit cnn
    """
    answer = pool_at(root).cancel(trainer)
    stopping = "; its processes are being stopped" if answer.phase is Phase.CLOSING else ""
    return answer, f"cancelled {answer.trainer}{stopping}"


@click.command("hold")
@in_running_pool
@each_trainer
def hold(root: Path, trainer: str) -> tuple[Any, str]:
    """Have TRAINERS write a checkpoint and give their nodes back until `pilot release`. They keep their place in the
    queue.

    \b
    Example:
      pilot hold vit cnn
    """
    answer = pool_at(root).hold(trainer)
    return answer, f"{answer.trainer} is held; pilot release {answer.trainer} continues it"


@click.command("release")
@in_running_pool
@each_trainer
def release(root: Path, trainer: str) -> tuple[Any, str]:
    """Give nodes to TRAINERS again, which are held; they continue from their checkpoints.

    \b
    Example:
      pilot release vit cnn
    """
    answer = pool_at(root).release(trainer)
    return answer, f"{answer.trainer} is released; it is {answer.phase}"


@click.command("rm")
@click.argument("trainers", nargs=-1, required=True, shell_complete=candidates.trainers)
@in_running_pool
@answers
def rm(root: Path, trainers: tuple[str, ...]) -> tuple[Any, ...]:
    """Delete TRAINERS, which have ended, with their checkpoints and logs. Their names can be used again.

    \b
    Example:
      pilot rm try1 try2
    """
    answer = pool_at(root).remove(trainers)
    return answer, f"removed {', '.join(answer.trainers)}"


@click.command("scale")
@click.argument("pilots", nargs=-1, required=True)
@in_running_pool
@answers
def scale(root: Path, pilots: tuple[str, ...]) -> tuple[Any, ...]:
    """Keep PILOTS pilots in the pool from now on: a number, or auto for as many as the trainers can use; where the site
    names types of nodes, TYPE:NUMBER for each type to change. To shrink, queued jobs are cancelled first, then idle
    pilots; then the newest pilots leave after handing over their work.

    \b
    Examples:
      pilot scale 16
      pilot scale auto
      pilot scale a100:4 a40:0
    """
    answer = pool_at(root).scale(*pilots_of(pilots))
    return answer, scaled_text(answer)


def scaled_text(answer: Scaled) -> str:
    """The number of pilots and nodes that the pool has now, in words."""
    pilots = answer.by_type or (None if answer.pilots is None else {"": answer.pilots})
    return f"keeping {pilots_words(pilots)}; the pool has {node_count(answer.nodes)} now"


def pilots_of(given: Sequence[str]) -> tuple[int | None, dict[str, int]]:
    """Parse a number of pilots (None: as many as the trainers can use), or one for each type of nodes."""
    counts = parse(given) or {}
    return (counts[""], {}) if "" in counts else (None, counts)


@click.command("wait")
@click.argument("trainers", nargs=-1, shell_complete=candidates.trainers)
@click.option("--limit-s", type=FiniteRange(min=0), help="Timeout in seconds (default: none).")
@in_running_pool
@answers
def wait(root: Path, trainers: tuple[str, ...], limit_s: float | None) -> tuple[Any, ...]:
    """Wait until TRAINERS have ended (default: all that have not ended and are not held). A trial of a study has ended
    when it is shelved or complete. Exit status 1 if one of them did not finish, 2 if one of these names is unknown.

    \b
    Example:
      pilot wait cnn mlp && echo trained
    """
    unknown = 0
    if trainers:
        trainers, unknown = _known(root, trainers)
    else:
        listed = pool_at(root).trainers().trainers
        trainers = tuple(t.trainer for t in listed if t.phase not in AT_REST and not t.held)
    answer = wait_for(root, trainers, limit_s) if trainers else Phases(trainers={})
    finished = all(phase in (Phase.FINISHED, Phase.SHELVED, Phase.COMPLETE) for phase in answer.trainers.values())
    return answer, lambda: _show_ends(root, answer, unknown), unknown or (0 if finished else 1)


def _known(root: Path, trainers: tuple[str, ...]) -> tuple[tuple[str, ...], int]:
    """The trainers that there are, and the exit status of the others, for each of which an error is printed."""
    known, status = [], 0
    for trainer in dict.fromkeys(trainers):
        try:
            pool_at(root).wait([trainer], 0.0)
        except UserError as error:
            click.echo(f"pilot: {error}", err=True)
            status = error.exit_status
        else:
            known.append(trainer)
    return tuple(known), status


def _show_ends(root: Path, answer: Phases, unknown: int) -> None:
    """Print their phases, and a line for each failure."""
    if answer.trainers or not unknown:
        click.echo(phase_words(answer, "\n"))
    failed = {trainer for trainer, phase in answer.trainers.items() if phase is Phase.FAILED}
    for trainer in pool_at(root).trainers().trainers if failed else ():
        if trainer.trainer in failed:
            click.echo(f"{trainer.trainer} failed: {shortened(headline(trainer.reason))}", err=True)


@click.command("down")
@click.option("--limit-s", type=FiniteRange(min=0), default=300.0, help="Timeout in seconds.")
@in_running_pool
@json_option
def down(root: Path, limit_s: float, as_json: bool) -> None:
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


def wait_until_gone(root: Path, limit_s: float, report: Callable[[str], None] | None = None) -> None:
    """Wait until no coordinator owns the run directory; :class:`PilotError` if one still does after ``limit_s``.

    ``report`` gets a line on the cause of the wait when the drain has taken a while, and whenever that changes.
    """
    deadline = time.monotonic() + limit_s
    ask_s, reported = time.monotonic() + ASK_EVERY_S, ""
    while owner(RunDir(root)) is not None:
        if report is not None and time.monotonic() > ask_s:
            ask_s, waits = time.monotonic() + ASK_EVERY_S, _waits_for(root)
            if waits not in ("", reported):
                reported = waits
                report(f"waiting for {shortened(waits)}")
        if time.monotonic() > deadline:
            raise PilotError(
                f"the pool is still draining after {limit_s:g} s (log: {root / 'coordinator.log'}); "
                "run pilot down again to keep waiting",
                transient=True,
            )
        time.sleep(0.1)


def _waits_for(root: Path) -> str:
    """The cause of a long drain; "" if the coordinator does not answer: it is about to exit."""
    try:
        status = pool_at(root, ASK_EVERY_S).status()
    except PilotError:
        return ""
    idle = AT_REST | {Phase.QUEUED}
    trainers = [f"{t.trainer} ({t.waits})" for t in status.trainers if t.waits and t.phase not in idle]
    nodes = [f"{node_count(len(status.pool))} to leave"] if status.pool else []
    return "; ".join(trainers or nodes or ["its jobs to end"])


def refuse_disorder(root: Path) -> None:
    """:class:`PilotError` if the ended coordinator's report is missing, or names jobs, nodes or states left or lost."""
    rundir = RunDir(root)
    how = read_end(rundir.ended)
    problems = how.problems() if how is not None else ["it was killed before it could report what is left"]
    if problems:
        raise PilotError(f"the coordinator has ended, but: {'; '.join(problems)}; its log is {rundir.log}")
