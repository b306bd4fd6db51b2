"""``pilot ls``: the trainers, each with its numbers and what it waits for."""

from __future__ import annotations

from pathlib import Path

import click

from pilot.cli.asking import find_run_dir, json_option, pool_at, run_dir_option, to_json


@click.command("ls")
@run_dir_option
@json_option
def command(run_dir: Path | None, as_json: bool) -> None:
    """List the trainers in the order of submission.

    \b
    Example:
      pilot ls --json
    """
    listed = pool_at(find_run_dir(run_dir)).trainers()
    if as_json:
        click.echo(to_json(listed))
        return
    from pilot.cli.rows import trainer_rows
    from pilot.cli.show import console, show

    screen = console()
    show(screen, trainer_rows(listed.trainers, screen.width))
