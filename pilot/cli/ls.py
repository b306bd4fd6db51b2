"""``pilot ls``: one line per trainer."""

from __future__ import annotations

from pathlib import Path

import click

from pilot.cli.asking import ask, find_run_dir, json_option, run_dir_option, to_json


@click.command("ls")
@run_dir_option
@json_option
def command(run_dir: Path | None, as_json: bool) -> None:
    """List the trainers in the order of submission.

    \b
    Example:
      pilot ls --json
    """
    trainers = ask(find_run_dir(run_dir), "list")
    if as_json:
        click.echo(to_json(trainers))
        return
    from pilot.cli.show import console, trainer_table

    console().print(trainer_table(trainers))
