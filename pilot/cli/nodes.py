"""``pilot nodes``: the pool's nodes, which ones are set aside, and why; ``--clear`` puts one back to work."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from pilot.cli.asking import find_run_dir, json_option, pool_at, run_dir_option, to_json, told_by

if TYPE_CHECKING:
    from pilot.io.pool_status import SetAsideStatus


@click.command("nodes")
@click.option(
    "--clear", "cleared", multiple=True, metavar="NODE", help="Forget the failures of this node and use it again."
)
@run_dir_option
@json_option
def command(cleared: tuple[str, ...], run_dir: Path | None, as_json: bool) -> None:
    """List the nodes with their trainers, and those that are set aside. If something fails on a node that works on
    others, the node is not used for that trainer for a while, and for no trainer once a second one fails there, too.

    \b
    Examples:
      pilot nodes
      pilot nodes --clear n17.4811-0
    """
    if cleared:
        told = pool_at(find_run_dir(run_dir)).clear(list(cleared))
        click.echo(to_json(told) if as_json else f"cleared {', '.join(told.nodes)}")
        return
    listed = told_by(find_run_dir(run_dir, past=True)).nodes()
    if as_json:
        click.echo(to_json(listed))
        return
    from pilot.cli.show import console, node_lines, show

    if not listed.nodes:
        click.echo("the pool has no nodes")
    else:
        show(console(), node_lines(listed.nodes, listed.now_s))
    for line in (*map(set_aside_line, listed.set_aside), *listed.remarks):
        click.echo(line)


def set_aside_line(aside: SetAsideStatus) -> str:
    """Describe a node that gets no work for a while."""
    whose = aside.trainer or "all trainers"
    return f"{aside.node} is set aside for {whose}, {aside.left_s / 60:.0f} min left: {aside.reason}"
