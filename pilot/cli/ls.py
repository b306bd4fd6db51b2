"""``pilot ls``: the trainers, each with its progress and what it is waiting for."""

from __future__ import annotations

from pathlib import Path

import click

from pilot.cli.asking import find_run_dir, is_past, json_option, run_dir_option, to_json, told_by


@click.command("ls")
@click.option(
    "--all", "everything", is_flag=True, help="Also all ended trainers, with their node-hours and why they ended."
)
@run_dir_option
@json_option
def command(run_dir: Path | None, everything: bool, as_json: bool) -> None:
    """List the trainers in order of submission: those that have not ended, and the last few that have. With --all, all
    of them with their node-hours and why they ended. Works for a pool that is down, too. --json always lists all.

    \b
    Examples:
      pilot ls
      pilot ls --all
    """
    root = find_run_dir(run_dir, past=True)
    told = told_by(root)
    if as_json:
        click.echo(to_json(told.trainers()))
        return
    from pilot.cli.history import history_lines
    from pilot.cli.rows import trainer_rows
    from pilot.cli.show import console, of_interest, show

    screen = console()
    if is_past(root):
        click.echo(f"the pool in {root} is down; its trainers:")
    listed = told.trainers().trainers
    if not listed:
        click.echo("no trainer has been submitted")
        return
    if everything:
        status = told.status()
        show(screen, history_lines(status, screen.width))
        if len(status.trainers) > status.ended_kept:
            click.echo(f"only the last {status.ended_kept} that ended (pilot up --ended-kept)")
        return
    shown = of_interest(listed)
    show(screen, trainer_rows(shown, screen.width))
    if left_out := len(listed) - len(shown):
        click.echo(f"and {left_out} that ended earlier (pilot ls --all)")
