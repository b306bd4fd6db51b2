"""``pilot rm``: remove trainers that have ended."""

from __future__ import annotations

from pathlib import Path

import click

from pilot.cli import candidates
from pilot.cli.asking import find_run_dir, json_option, pool_at, run_dir_option, to_json


@click.command("rm")
@click.argument("trainers", nargs=-1, required=True, shell_complete=candidates.trainers)
@run_dir_option
@json_option
def command(trainers: tuple[str, ...], run_dir: Path | None, as_json: bool) -> None:
    """Delete TRAINERS, which have ended, with their checkpoints and logs. Their names can be used again.

    \b
    Example:
      pilot rm try1 try2
    """
    told = pool_at(find_run_dir(run_dir)).remove(list(trainers))
    click.echo(to_json(told) if as_json else f"removed {', '.join(told.trainers)}")
