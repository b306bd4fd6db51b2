"""``pilot status``: the pool, the trainers, the last decisions; or the history of one trainer."""

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
@click.option("--nodes", is_flag=True, help="Also list the nodes with their jobs.")
def command(trainer: str | None, run_dir: Path | None, as_json: bool, nodes: bool) -> None:
    """Show the pool, the trainers (with the last lines of the traceback of a failed one) and the last decisions. With
    TRAINER: which nodes it had when, what it used, why it ended. Works for a pool that is down, too.

    \b
    Examples:
      pilot status
      pilot status vit
    """
    told = told_by(find_run_dir(run_dir, past=True))
    if trainer is not None and nodes:
        raise UserError("--nodes lists the pool's nodes; for those of one trainer use 'pilot status NAME' alone")
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
