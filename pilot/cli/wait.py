"""``pilot wait``: wait for trainers to end."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any

import click

from pilot.cli import candidates
from pilot.cli.asking import AT_REST, REPLY_TIMEOUT_S, in_running_pool, patiently, pool_at
from pilot.cli.options import FiniteRange, answers
from pilot.core.errors import PilotError
from pilot.core.pool.evidence import headline
from pilot.core.trainer.trainer import Phase
from pilot.protocol.pool_status import TrainerStatus
from pilot.protocol.requests import LONGEST_WAIT_S, Phases


@click.command("wait")
@click.argument("trainers", nargs=-1, shell_complete=candidates.trainers)
@click.option("--limit-s", type=FiniteRange(min=0), help="Timeout in seconds (default: none).")
@in_running_pool
@answers
def command(root: Path, trainers: tuple[str, ...], limit_s: float | None) -> tuple[Any, ...]:
    """Wait until TRAINERS have ended (default: all that have not ended and are not held). A trial of a study has ended
    when it is shelved. Exit status 1 if one of them did not finish.

    \b
    Example:
      pilot wait cnn mlp && echo trained
    """
    trainers = trainers or tuple(t.trainer for t in pool_at(root).trainers().trainers if _is_waited_for(t))
    deadline = time.monotonic() + (math.inf if limit_s is None else limit_s)
    answer = _wait(root, trainers, 0.0) if trainers else Phases(trainers={})
    while not all(phase in AT_REST for phase in answer.trainers.values()):
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            raise PilotError(f"timed out after {limit_s:g} s: {_line(answer)}", transient=True)
        answer = patiently(lambda: _wait(root, trainers, min(left_s, LONGEST_WAIT_S)))  # noqa: B023  # called right here
    finished = all(phase in (Phase.FINISHED, Phase.SHELVED) for phase in answer.trainers.values())
    return answer, lambda: _say(root, answer), 0 if finished else 1


def _wait(root: Path, trainers: tuple[str, ...], limit_s: float) -> Phases:
    return pool_at(root, timeout_s=2 * REPLY_TIMEOUT_S).wait(list(trainers), limit_s)


def _say(root: Path, answer: Phases) -> None:
    """In what phases they are, and why each of those that failed did, a line each."""
    click.echo(_line(answer))
    failed = {trainer for trainer, phase in answer.trainers.items() if phase is Phase.FAILED}
    for trainer in pool_at(root).trainers().trainers if failed else ():
        if trainer.trainer in failed:
            click.echo(f"{trainer.trainer} failed: {headline(trainer.reason)}", err=True)


def _is_waited_for(trainer: TrainerStatus) -> bool:
    return trainer.phase not in AT_REST and not trainer.held


def _line(answer: Phases) -> str:
    return ", ".join(f"{trainer} {phase}" for trainer, phase in answer.trainers.items()) or "no trainer to wait for"
