"""Commands that change one thing in a running pool: each sends a request, and says what came of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from pilot.cli import candidates
from pilot.cli.asking import in_running_pool, pool_at
from pilot.cli.options import answers, trainer_argument
from pilot.core.errors import UserError
from pilot.core.trainer.trainer import Phase
from pilot.history.words import counted, node_count
from pilot.protocol.requests import Scaled

AUTO = "auto"


@click.command("cancel")
@trainer_argument
@in_running_pool
@answers
def cancel(root: Path, trainer: str) -> tuple[Any, ...]:
    """End TRAINER now. Its checkpoints and logs stay.

    Its script gets 30 s to end before it is killed, also one that runs on after its training loop.

    \b
    Example:
      pilot cancel vit
    """
    answer = pool_at(root).cancel(trainer)
    stopping = "; its processes are being stopped" if answer.phase is Phase.CLOSING else ""
    return answer, f"cancelled {answer.trainer}{stopping}"


@click.command("hold")
@trainer_argument
@in_running_pool
@answers
def hold(root: Path, trainer: str) -> tuple[Any, ...]:
    """Have TRAINER write a checkpoint and give its nodes back until `pilot release`. It keeps its place in the queue.

    \b
    Example:
      pilot hold vit
    """
    answer = pool_at(root).hold(trainer)
    return answer, f"{answer.trainer} is held; pilot release {answer.trainer} continues it"


@click.command("release")
@trainer_argument
@in_running_pool
@answers
def release(root: Path, trainer: str) -> tuple[Any, ...]:
    """Give nodes to TRAINER again, which is held; it continues from its checkpoint.

    \b
    Example:
      pilot release vit
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
@click.argument("pilots")
@in_running_pool
@answers
def scale(root: Path, pilots: str) -> tuple[Any, ...]:
    """Keep PILOTS pilots in the pool from now on: a number, or auto for as many as the trainers can use. To shrink,
    queued jobs are cancelled first, then idle pilots; then the newest pilots leave after handing over their work.

    \b
    Examples:
      pilot scale 16
      pilot scale auto
    """
    answer = pool_at(root).scale(pilots_of(pilots))
    return answer, kept(answer)


def kept(answer: Scaled) -> str:
    """Say in words what the pool now does."""
    pilots = "as many pilots as the trainers can use" if answer.pilots is None else counted(answer.pilots, "pilot")
    return f"keeping {pilots}; the pool has {node_count(answer.nodes)} now"


def pilots_of(given: str) -> int | None:
    """Parse a number of pilots; None: as many as the trainers can use."""
    if given == AUTO:
        return None
    if not given.isdecimal() or int(given) > 1_000_000:
        raise UserError(f"PILOTS must be a number from 0 to 1000000, or {AUTO}; got {given!r}")
    return int(given)
