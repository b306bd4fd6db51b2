"""``pilot resume``: continue a trainer that failed or was cancelled."""

from __future__ import annotations

from pathlib import Path

import click

from pilot.cli import candidates
from pilot.cli.asking import find_run_dir, json_option, pool_at, run_dir_option, to_json
from pilot.cli.numbers import FiniteRange
from pilot.cli.submit import accept_option, launch_again


@click.command("resume")
@click.argument("trainer", shell_complete=candidates.trainers)
@click.option(
    "--budget",
    type=FiniteRange(min=0, min_open=True),
    metavar="NODE-HOURS",
    help="Node-hours it may use in total, as charged by the site (default: as submitted).",
)
@click.option(
    "--from-scratch",
    is_flag=True,
    help="Start again as when it was submitted. Its checkpoints so far are not used; they stay until you remove them.",
)
@accept_option
@run_dir_option
@json_option
def command(
    trainer: str,
    budget: float | None,
    from_scratch: bool,
    accept_changes: str | None,
    run_dir: Path | None,
    as_json: bool,
) -> None:
    """Continue TRAINER, which failed, was cancelled or was stopped, from its newest checkpoint, under the same name and
    with the same logs. Its script is read again, so that a fix takes effect; arguments and environment stay as
    submitted. With --from-scratch, TRAINER may also be held because its checkpoints cannot be loaded.

    \b
    Examples:
      pilot resume vit
      pilot resume vit --budget 40
      pilot resume vit --from-scratch
      pilot resume vit --accept-changes options
    """
    root = find_run_dir(run_dir)
    client = pool_at(root)
    told = client.resume(trainer, launch_again(root, trainer, accept_changes), budget, from_scratch=from_scratch)
    click.echo(to_json(told) if as_json else f"{told.trainer} resumed; it is {told.phase}")
