"""``pilot release``: give a held trainer nodes again."""

from __future__ import annotations

from pathlib import Path

import click

from pilot.cli import candidates
from pilot.cli.asking import find_run_dir, json_option, pool_at, run_dir_option, to_json


@click.command("release")
@click.argument("trainer", shell_complete=candidates.trainers)
@run_dir_option
@json_option
def command(trainer: str, run_dir: Path | None, as_json: bool) -> None:
    """Give nodes to TRAINER again, which is held; it continues from its checkpoint.

    \b
    Example:
      pilot release vit
    """
    told = pool_at(find_run_dir(run_dir)).release(trainer)
    click.echo(to_json(told) if as_json else f"{told.trainer} is released; it is {told.phase}")
