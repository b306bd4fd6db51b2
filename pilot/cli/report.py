"""``pilot report``: a pool's history as one HTML page."""

from __future__ import annotations

from pathlib import Path

import click

from pilot.cli.asking import in_any_pool, what_happened
from pilot.cli.options import page_option


@click.command("report")
@page_option("report.html")
@in_any_pool
def command(root: Path, output: Path | None) -> None:
    """Write the history of a pool, up or down, as one self-contained HTML page.

    It shows the pool's nodes over time, the trainers with their curves, every change of their nodes, and the events.

    \b
    Examples:
      pilot report
      pilot report --output week.html --run-dir ~/pilot/vision
    """
    from pilot.cli.show import write_page
    from pilot.io.rundir import RunDir
    from pilot.observation.page import render
    from pilot.service.life import life_of

    contents = what_happened(RunDir(root))
    write_page(output or Path("report.html"), render(life_of(contents)))
