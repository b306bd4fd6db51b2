"""``pilot explain``: why a trainer has the nodes it has."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from pilot.cli import candidates
from pilot.cli.asking import find_run_dir, json_option, run_dir_option, to_json, told_by
from pilot.core.explain import Explanation

if TYPE_CHECKING:
    from rich.table import Table


@click.command("explain")
@click.argument("trainer", shell_complete=candidates.trainers)
@run_dir_option
@json_option
@click.option("--terms", is_flag=True, help="Also show how the worth of each node count is calculated.")
def command(trainer: str, run_dir: Path | None, as_json: bool, terms: bool) -> None:
    """Explain why TRAINER has the nodes that it has: what it would be worth to the pool with one node fewer and with
    one more. Also how often it writes a checkpoint, and why.

    \b
    Examples:
      pilot explain vit
      pilot explain vit --terms
    """
    told = told_by(find_run_dir(run_dir, past=True)).explain(trainer)
    if as_json:
        click.echo(to_json(told))
        return
    from rich.text import Text

    from pilot.cli.rows import folded
    from pilot.cli.show import console, show

    screen = console()
    show(screen, [Text(line) for sentence in told.sentences for line in folded(sentence, screen.width)])
    if told.decision is not None and terms:
        click.echo()
        screen.print(_table(told.decision))
        sums = f"worth = value - cost; value = value/s × {told.decision.t_fwd_s:g} s; cost = value/s now × rescale s"
        show(screen, [Text(line) for line in folded(sums, screen.width)])


def _table(decision: Explanation) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("nodes", "allowed", "value/s", "rescale s", "value", "cost", "worth"):
        table.add_column(column, justify="right")
    for term in decision.terms:
        row = [term.value_per_s, term.rescale_s, term.value, term.cost, term.gain]
        table.add_row(str(term.nodes), "yes" if term.allowed else "no", *(f"{cell:.6g}" for cell in row))
    return table
