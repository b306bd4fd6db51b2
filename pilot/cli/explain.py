"""``pilot explain``: why a trainer holds the nodes that it holds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from pilot.cli.asking import ask, find_run_dir, json_option, run_dir_option, to_json


@click.command("explain")
@click.argument("trainer")
@run_dir_option
@json_option
def command(trainer: str, run_dir: Path | None, as_json: bool) -> None:
    """Say why TRAINER holds the nodes that it holds: the objective's terms for one node fewer, as now, and one more.
    Also how often it writes a checkpoint, and why.

    \b
    Example:
      pilot explain vit
    """
    told = ask(find_run_dir(run_dir), "explain", trainer=trainer)
    if as_json:
        click.echo(to_json(told))
        return
    from pilot.cli.show import console

    for sentence in told["sentences"]:
        click.echo(sentence)
    if "terms" in told:
        click.echo()
        console().print(_table(told))


def _table(told: dict[str, Any]) -> Any:
    from rich.table import Table

    caption = f"eq. 16: value per second × {told['t_fwd_s']:g} s - rate now × rescale"
    table = Table(box=None, pad_edge=False, header_style="bold", caption=caption, caption_justify="left")
    for column in ("nodes", "allowed", "value/s", "rescale s", "value", "cost", "term"):
        table.add_column(column, justify="right")
    for term in told["terms"]:
        row = [term["value_per_s"], term["rescale_s"], term["value"], term["cost"], term["value"] - term["cost"]]
        table.add_row(str(term["nodes"]), "yes" if term["allowed"] else "no", *(f"{cell:.6g}" for cell in row))
    return table
