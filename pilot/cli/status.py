"""``pilot status``: the pool, the trainers, the decisions; or one trainer and what became of it."""

from __future__ import annotations

from pathlib import Path

import click

from pilot.cli import candidates
from pilot.cli.asking import find_run_dir, json_option, run_dir_option, to_json, told_by
from pilot.core.errors import UserError


@click.command("status")
@click.argument("trainer", required=False, shell_complete=candidates.trainers)
@run_dir_option
@json_option
@click.option("--nodes", is_flag=True, help="List the nodes with their jobs, too.")
def command(trainer: str | None, run_dir: Path | None, as_json: bool, nodes: bool) -> None:
    """Show the pool, the trainers (a failed one with the last lines of its traceback) and the last decisions. Of
    TRAINER: what it held when, what it used, why it ended. Also where the pool is down.

    \b
    Examples:
      pilot status
      pilot status vit
    """
    told = told_by(find_run_dir(run_dir, past=True))
    if trainer is not None and nodes:
        raise UserError("--nodes lists the pool's nodes; without it 'pilot status NAME' has those of the trainer")
    answer = told.status() if trainer is None else told.history(trainer)
    if as_json:
        click.echo(to_json(answer))
        return
    from pilot.cli.history import history_view
    from pilot.cli.show import console, show, status_lines
    from pilot.io.pool_status import PoolStatus

    screen = console()
    if isinstance(answer, PoolStatus):
        show(screen, status_lines(answer, screen.width, nodes=nodes))
    else:
        show(screen, history_view(answer, screen.width))
