"""``pilot status``: the pool, the trainers, the decisions."""

from __future__ import annotations

from pathlib import Path

import click

from pilot.cli.asking import find_run_dir, json_option, pool_at, run_dir_option, to_json


@click.command("status")
@run_dir_option
@json_option
@click.option("--nodes", is_flag=True, help="List the nodes, too.")
def command(run_dir: Path | None, as_json: bool, nodes: bool) -> None:
    """Show the pool, the trainers (a failed one with the last lines of its traceback) and the last decisions.

    \b
    Example:
      pilot status
    """
    status = pool_at(find_run_dir(run_dir)).status()
    if as_json:
        click.echo(to_json(status))
        return
    from pilot.cli.show import console, show, status_lines

    screen = console()
    show(screen, status_lines(status, screen.width, nodes=nodes))
