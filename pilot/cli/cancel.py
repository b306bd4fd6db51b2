"""``pilot cancel``: end a trainer."""

from __future__ import annotations

from pathlib import Path

import click

from pilot.cli import candidates
from pilot.cli.asking import find_run_dir, json_option, pool_at, run_dir_option, to_json
from pilot.core.trainer import Phase


@click.command("cancel")
@click.argument("trainer", shell_complete=candidates.trainers)
@run_dir_option
@json_option
def command(trainer: str, run_dir: Path | None, as_json: bool) -> None:
    """End TRAINER now. Its checkpoints and logs stay.

    Its script is told, and killed after 30 s; also one that runs on after its training loop.

    \b
    Example:
      pilot cancel vit
    """
    told = pool_at(find_run_dir(run_dir)).cancel(trainer)
    stopping = "; its processes are being stopped" if told.phase is Phase.CLOSING else ""
    click.echo(to_json(told) if as_json else f"cancelled {told.trainer}{stopping}")
