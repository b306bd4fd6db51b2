"""``pilot wait``: wait for trainers to end."""

from __future__ import annotations

import time
from pathlib import Path

import click

from pilot.cli import candidates
from pilot.cli.asking import (
    ENDED,
    REPLY_TIMEOUT_S,
    find_run_dir,
    json_option,
    pool_at,
    run_dir_option,
    to_json,
)
from pilot.cli.numbers import FiniteRange
from pilot.core.errors import PilotError
from pilot.core.trainer import Phase
from pilot.io.pool_status import TrainerStatus
from pilot.io.verbs import Phases


@click.command("wait")
@click.argument("trainers", nargs=-1, shell_complete=candidates.trainers)
@click.option("--limit-s", type=FiniteRange(min=0), help="Timeout in seconds (default: none).")
@run_dir_option
@json_option
def command(trainers: tuple[str, ...], limit_s: float | None, run_dir: Path | None, as_json: bool) -> int:
    """Wait until TRAINERS have ended (default: all that have not ended and are not held). Exit status 1 if one of them
    did not finish.

    \b
    Example:
      pilot wait cnn mlp && echo trained
    """
    root = find_run_dir(run_dir)
    trainers = trainers or tuple(t.trainer for t in pool_at(root).trainers().trainers if _is_waited_for(t))
    deadline = time.monotonic() + limit_s if limit_s is not None else None
    while True:
        told = pool_at(root, timeout_s=2 * REPLY_TIMEOUT_S).wait(trainers) if trainers else Phases(trainers={})
        if all(phase in ENDED for phase in told.trainers.values()):
            break
        if deadline is not None and time.monotonic() > deadline:
            raise PilotError(f"not ended after {limit_s:g} s: {_line(told)}", transient=True)
    click.echo(to_json(told) if as_json else _line(told))
    return 0 if all(phase is Phase.FINISHED for phase in told.trainers.values()) else 1


def _is_waited_for(trainer: TrainerStatus) -> bool:
    return trainer.phase not in ENDED and not trainer.held


def _line(told: Phases) -> str:
    return ", ".join(f"{trainer} {phase}" for trainer, phase in told.trainers.items()) or "no trainer to wait for"
