"""``pilot nodes``: the pool's nodes, what is set aside and why; clear what is well again."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from pilot.cli.asking import find_run_dir, json_option, pool_at, run_dir_option, to_json, told_by

if TYPE_CHECKING:
    from pilot.io.pool_status import SetAsideStatus


@click.command("nodes")
@click.option("--clear", "cleared", multiple=True, metavar="NODE", help="This node is well: forget what failed on it.")
@run_dir_option
@json_option
def command(cleared: tuple[str, ...], run_dir: Path | None, as_json: bool) -> None:
    """List the nodes, whose they are, and what is set aside: a node on which something failed that works on others gets
    no work of that trainer for a time, and of nobody once a second trainer says the same.

    \b
    Example:
      pilot nodes
      pilot nodes --clear n17.4811-0
    """
    if cleared:
        told = pool_at(find_run_dir(run_dir)).clear(cleared)
        click.echo(to_json(told) if as_json else f"nothing is held against {', '.join(told.nodes)} any more")
        return
    listed = told_by(find_run_dir(run_dir, past=True)).nodes()
    if as_json:
        click.echo(to_json(listed))
        return
    from pilot.cli.show import console, node_lines, show

    show(console(), node_lines(listed.nodes, listed.now_s))
    for line in map(set_aside_line, listed.set_aside):
        click.echo(line)


def set_aside_line(aside: SetAsideStatus) -> str:
    """One node that gets no work for a time, in words."""
    whose = aside.trainer or "all trainers"
    return f"{aside.node} is set aside for {whose}, for {aside.left_s / 60:.0f} min more: {aside.reason}"
