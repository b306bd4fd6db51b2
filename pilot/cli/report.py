"""``pilot report``: a pool's history as one HTML page."""

from __future__ import annotations

from pathlib import Path

import click

from pilot.cli.asking import find_run_dir, run_dir_option, what_happened
from pilot.cli.pages import page_option, write_page


@click.command("report")
@page_option("report.html")
@run_dir_option
def command(output: Path | None, run_dir: Path | None) -> None:
    """Write the history of a pool, up or down, as one self-contained HTML page.

    It shows the pool's nodes over time, the trainers with their curves, every change of their nodes, and the events.

    \b
    Examples:
      pilot report
      pilot report --output week.html --run-dir ~/pilot/vision
    """
    from pilot.io.rundir import RunDir
    from pilot.observation.page import render
    from pilot.service.life import life_of

    contents = what_happened(RunDir(find_run_dir(run_dir, past=True)))
    write_page(output or Path("report.html"), render(life_of(contents)))
