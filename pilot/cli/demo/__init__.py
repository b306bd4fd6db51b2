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
    """Show the system at work: four pilots, two trainers on real data, a preemption with notice, a kill without, a new
    pilot.

    Prints the events, writes the page that pilot report writes, and proves from the ledger that every sample was
    used exactly once per epoch and no step was lost. Exit status 0 only if all of this holds.

    \b
    Example:
      pilot demo --output out/demo
    """
    need("examples")
    from pilot.cli.demo.play import play
    from pilot.cli.demo.report import judge, show
    from pilot.cli.show import console

    folder = (output or Path("out") / time.strftime("demo-%Y%m%d-%H%M%S")).absolute()
    screen = console(stderr=as_json, soft_wrap=True)
    answer = judge(play(screen, folder, site, epochs))
    if as_json:
        click.echo(to_json(answer))
    else:
        show(screen, answer, folder / "report.html")
    return 0 if answer.passed else 1
