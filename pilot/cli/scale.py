"""``pilot scale``: change how many pilots a running pool keeps."""

from __future__ import annotations

from pathlib import Path

import click

from pilot.cli.asking import find_run_dir, json_option, pool_at, run_dir_option, to_json
from pilot.core.errors import UserError
from pilot.io.verbs import Scaled
from pilot.observation.words import node_count

AUTO = "auto"


@click.command("scale")
@click.argument("pilots")
@run_dir_option
@json_option
def command(pilots: str, run_dir: Path | None, as_json: bool) -> None:
    """Keep PILOTS pilots in the pool from now on: a number, or auto for as many as the trainers can use. To shrink,
    queued jobs are cancelled first, then idle pilots; then the newest pilots leave after handing over their work.

    \b
    Examples:
      pilot scale 16
      pilot scale auto
    """
    told = pool_at(find_run_dir(run_dir)).scale(pilots_of(pilots))
    click.echo(to_json(told) if as_json else kept(told))


def kept(told: Scaled) -> str:
    """Say in words what the pool now does."""
    if told.pilots is None:
        pilots = "as many pilots as the trainers can use"
    else:
        pilots = f"{told.pilots} pilot{'' if told.pilots == 1 else 's'}"
    return f"keeping {pilots}; the pool has {node_count(told.nodes)} now"


def pilots_of(given: str) -> int | None:
    """Parse a number of pilots; None: as many as the trainers can use."""
    if given == AUTO:
        return None
    if not given.isdecimal() or int(given) > 1_000_000:
        raise UserError(f"PILOTS must be a number from 0 to 1000000, or {AUTO}; got {given!r}")
    return int(given)
