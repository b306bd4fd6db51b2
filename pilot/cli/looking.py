"""Commands that show what a pool is doing: its trainers, its nodes, and why a trainer has those that it has."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pilot.cli import candidates
from pilot.cli.asking import any_pool_at, in_any_pool, is_past, pool_at
from pilot.cli.options import answers, trainer_argument
from pilot.core.errors import UserError
from pilot.protocol.pool_status import PoolStatus, SetAsideStatus, TrainerHistory, TrainerStatus
from pilot.protocol.requests import Explained, NodeList

if TYPE_CHECKING:
    from pilot.protocol.pool_client import PoolClient
    from pilot.service.requests.ended_pool import PastPool


@click.command("status")
@click.argument("trainer", required=False, shell_complete=candidates.trainers)
@in_any_pool
@answers
@click.option("--nodes", is_flag=True, help="Also list the nodes with their jobs.")
def status(root: Path, trainer: str | None, nodes: bool) -> tuple[Any, ...]:
    """Show the pool, the trainers (with the last lines of the traceback of a failed one) and the last decisions. With
    TRAINER: which nodes it had when, what it used, why it ended. Works for a pool that is down, too.

    \b
    Examples:
      pilot status
      pilot status vit
    """
    pool = any_pool_at(root)
    if trainer is not None and nodes:
        raise UserError("--nodes lists the pool's nodes; for those of one trainer use 'pilot status NAME' alone")
    answer = pool.status() if trainer is None else pool.history(trainer)
    return answer, lambda: _show_status(answer, nodes)


def _show_status(answer: PoolStatus | TrainerHistory, nodes: bool) -> None:
    from pilot.cli.history import history_view
    from pilot.cli.show import console, show, status_lines

    screen = console()
    if isinstance(answer, PoolStatus):
        show(screen, status_lines(answer, screen.width, nodes=nodes))
    else:
        show(screen, history_view(answer, screen.width))


@click.command("ls")
@click.option(
    "--all", "everything", is_flag=True, help="Also all ended trainers, with their node-hours and why they ended."
)
@in_any_pool
@answers
def ls(root: Path, everything: bool) -> tuple[Any, ...]:
    """List the trainers in order of submission: those that have not ended, and the last few that have. With --all, all
    of them with their node-hours and why they ended. Works for a pool that is down, too. --json always lists all.

    \b
    Examples:
      pilot ls
      pilot ls --all
    """
    pool = any_pool_at(root)
    listed = pool.trainers()
    return listed, lambda: _list(root, pool, listed.trainers, everything)


def _list(root: Path, pool: PoolClient | PastPool, listed: list[TrainerStatus], everything: bool) -> None:
    from pilot.cli.history import history_lines
    from pilot.cli.rows import trainer_rows
    from pilot.cli.show import console, of_interest, show

    screen = console()
    if is_past(root):
        click.echo(f"the pool in {root} is down; its trainers:")
    if not listed:
        click.echo("no trainer has been submitted")
    elif everything:
        status = pool.status()
        show(screen, history_lines(status, screen.width))
        if len(status.trainers) > status.ended_kept:
            click.echo(f"only the last {status.ended_kept} that ended (pilot up --ended-kept)")
    else:
        shown = of_interest(listed)
        show(screen, trainer_rows(shown, screen.width))
        if left_out := len(listed) - len(shown):
            click.echo(f"and {left_out} that ended earlier (pilot ls --all)")


@click.command("nodes")
@click.option(
    "--clear", "cleared", multiple=True, metavar="NODE", help="Forget the failures of this node and use it again."
)
@in_any_pool
@answers
def nodes(root: Path, cleared: tuple[str, ...]) -> tuple[Any, ...]:
    """List the nodes with their trainers, and those that are set aside. If something fails on a node that works on
    others, the node is not used for that trainer for a while, and for no trainer once a second one fails there, too.

    \b
    Examples:
      pilot nodes
      pilot nodes --clear n17.4811-0
    """
    if cleared:
        answer = pool_at(root).clear(cleared)
        return answer, f"cleared {', '.join(answer.nodes)}"
    listed = any_pool_at(root).nodes()
    return listed, lambda: _show_nodes(listed)


def _show_nodes(listed: NodeList) -> None:
    from pilot.cli.show import console, node_lines, show

    if not listed.nodes:
        click.echo("the pool has no nodes")
    else:
        show(console(), node_lines(listed.nodes, listed.now_s))
    for line in (*map(_set_aside, listed.set_aside), *listed.remarks):
        click.echo(line)


def _set_aside(aside: SetAsideStatus) -> str:
    """Describe a node that gets no work for a while."""
    whose = aside.trainer or "all trainers"
    return f"{aside.node} is set aside for {whose}, {aside.left_s / 60:.0f} min left: {aside.reason}"


@click.command("explain")
@trainer_argument
@in_any_pool
@answers
def explain(root: Path, trainer: str) -> tuple[Any, ...]:
    """Explain why TRAINER has the nodes that it has: what it would be worth to the pool with one node fewer and with
    one more. Also how often it writes a checkpoint, and why.

    \b
    Example:
      pilot explain vit
    """
    answer = any_pool_at(root).explain(trainer)
    return answer, lambda: _explain(answer)


def _explain(answer: Explained) -> None:
    from rich.text import Text

    from pilot.cli.rows import folded
    from pilot.cli.show import console, show

    screen = console()
    show(screen, [Text(line) for sentence in answer.sentences for line in folded(sentence, screen.width)])
