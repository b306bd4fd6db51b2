"""``pilot report``: a pool's history as one HTML page."""

from __future__ import annotations

from pathlib import Path

import click

from pilot.cli.asking import find_run_dir, run_dir_option, what_happened
from pilot.core.errors import UserError


@click.command("report")
@click.argument("output", type=click.Path(dir_okay=False, path_type=Path), default="report.html")
@run_dir_option
def command(output: Path, run_dir: Path | None) -> None:
    """Write the history of a pool, up or down, to OUTPUT: one self-contained HTML page.

    It shows the pool's nodes over time, the trainers with their curves, every change of their nodes, and the events.

    \b
    Examples:
      pilot report
      pilot report week.html --run-dir ~/.pilot/polaris
    """
    from pilot.io.rundir import RunDir
    from pilot.observation.page import render
    from pilot.service.life import life_of

    if not output.parent.is_dir():
        raise UserError(f"cannot write {output}: no directory {output.parent}")
    contents = what_happened(RunDir(find_run_dir(run_dir, past=True)))
    page = render(life_of(contents))
    try:
        output.write_text(page)
    except OSError as error:
        raise UserError(f"cannot write {output}: {error.strerror}") from None
    click.echo(f"{output}: {len(page.encode()):,} bytes")
