"""``pilot resume``: have a trainer that failed or was cancelled go on."""

from __future__ import annotations

from pathlib import Path

import click

from pilot.cli import candidates
from pilot.cli.asking import find_run_dir, json_option, pool_at, run_dir_option, to_json
from pilot.cli.submit import launch_again


@click.command("resume")
@click.argument("trainer", shell_complete=candidates.trainers)
@run_dir_option
@json_option
def command(trainer: str, run_dir: Path | None, as_json: bool) -> None:
    """Have TRAINER, which failed or was cancelled, go on where its newest checkpoint is: as itself, with its logs. Its
    script is taken as it is now, so a mended one goes on; arguments and environment stay as they were submitted.

    \b
    Examples:
      pilot resume vit
    """
    root = find_run_dir(run_dir)
    client = pool_at(root)
    told = client.resume(trainer, launch_again(root, trainer))
    click.echo(to_json(told) if as_json else f"{told.trainer} goes on; it is {told.phase}")
