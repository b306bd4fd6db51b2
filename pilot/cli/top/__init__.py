"""``pilot top``: the pool, live, in a terminal."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from pilot.cli.asking import in_running_pool
from pilot.cli.options import FiniteRange, need
from pilot.client.pools import pool_at
from pilot.core.errors import UserError

LEAST_S = 0.2


@click.command("top")
@click.option("--every-s", type=FiniteRange(min=LEAST_S), default=1.0, help="Time between updates.")
@in_running_pool
def command(every_s: float, root: Path) -> None:
    """Watch the pool live: its trainers with their rate and loss over time, who has which node, and events.

    Keys: up and down select a trainer; l shows its log, e explains its nodes, x cancels it; s changes the number of
    pilots; q quits.

    \b
    Example:
      pilot top
    """
    need("top")
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise UserError("pilot top needs a terminal; in a script use pilot status --json")
    pool = pool_at(root)
    pool.status()  # errors go to the normal screen, not to the one that vanishes
    from pilot.cli.logs import newest_lines
    from pilot.cli.top.app import Top

    Top(pool, lambda trainer, lines: newest_lines(root, trainer, lines), every_s).run()
