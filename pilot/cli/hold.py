"""``pilot hold``: take a trainer's nodes away for a while."""

from __future__ import annotations

from pathlib import Path

import click

from pilot.cli import candidates
from pilot.cli.asking import find_run_dir, json_option, pool_at, run_dir_option, to_json


@click.command("hold")
@click.argument("trainer", shell_complete=candidates.trainers)
@run_dir_option
@json_option
def command(trainer: str, run_dir: Path | None, as_json: bool) -> None:
    """Have TRAINER write a checkpoint and give its nodes back until `pilot release`. It keeps its place in the queue.

    \b
    Example:
      pilot hold vit
    """
    told = pool_at(find_run_dir(run_dir)).hold(trainer)
    click.echo(to_json(told) if as_json else f"{told.trainer} is held; pilot release {told.trainer} continues it")
