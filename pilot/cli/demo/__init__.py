"""``pilot demo``: a small pool on this machine, with preemptions and kills."""

from __future__ import annotations

import time
from pathlib import Path

import click

from pilot.cli.options import Count, json_option, need, site_option, to_json


@click.command("demo")
@site_option
@click.option(
    "--output", type=click.Path(file_okay=False, path_type=Path), help="Directory for results (default: out/demo-…)."
)
@click.option("--epochs", type=Count(), help="Epochs of each trainer (default: enough for a minute and a half).")
@json_option
def command(site: str, output: Path | None, epochs: int | None, as_json: bool) -> int:
    """Show the whole system at work: four pilots, two trainers on real data, a preemption with notice, a kill without,
    a new pilot.

    Prints what happened, writes the page that pilot report writes, and proves from the ledger that every sample was
    used exactly once per epoch and no step was lost. Exit status 0 only if all of this holds.

    \b
    Example:
      pilot demo --output out/demo
    """
    need("examples")
    from pilot.cli.demo.play import play
    from pilot.cli.demo.report import judge, show, write
    from pilot.cli.show import console

    folder = (output or Path("out") / time.strftime("demo-%Y%m%d-%H%M%S")).absolute()
    screen = console(stderr=as_json, soft_wrap=True)
    report = judge(play(screen, folder, site, epochs))
    page = write(report)
    if as_json:
        click.echo(to_json(report.answer()))
    else:
        show(screen, report, page)
    return 0 if report.passed else 1
