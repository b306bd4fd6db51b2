"""``pilot ls``: the trainers, each with its numbers and what it waits for."""

from __future__ import annotations

from pathlib import Path

import click

from pilot.cli.asking import find_run_dir, json_option, run_dir_option, to_json, told_by


@click.command("ls")
@click.option("--all", "everything", is_flag=True, help="Those that have ended, too, with what they held and used.")
@run_dir_option
@json_option
def command(run_dir: Path | None, everything: bool, as_json: bool) -> None:
    """List the trainers in the order of submission: those that have not ended, and the last ones that have. With --all
    each one, with its node-hours and why it ended; also where the pool is down. --json always has each one.

    \b
    Examples:
      pilot ls
      pilot ls --all
    """
    told = told_by(find_run_dir(run_dir, past=True))
    if as_json:
        click.echo(to_json(told.trainers()))
        return
    from pilot.cli.history import history_table
    from pilot.cli.rows import trainer_rows
    from pilot.cli.show import console, of_interest, show
    from pilot.core.budget import unit

    screen = console()
    if everything:
        status = told.status()
        screen.print(history_table(status.trainers, status.began_unix_s, status.now_s))
        if status.charge_factor != 1:
            click.echo(f"node-hours: {unit(status.charge_factor)}")
        if len(status.trainers) > status.ended_kept:
            click.echo(f"of those that ended the last {status.ended_kept}, as pilot up --ended-kept says")
        return
    listed = told.trainers().trainers
    shown = of_interest(listed)
    show(screen, trainer_rows(shown, screen.width))
    if left_out := len(listed) - len(shown):
        click.echo(f"and {left_out} that ended before these (pilot ls --all)")
