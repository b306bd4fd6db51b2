"""Commands that show what pools are doing: their trainers, their nodes, and why a trainer has its nodes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.text import Text

from pilot.cli import candidates
from pilot.cli.asking import in_any_pool
from pilot.cli.options import answers, trainer_argument
from pilot.cli.rows import folded, history_lines, history_view, trainer_rows
from pilot.cli.show import console, node_lines, of_interest, print_table, show, status_lines
from pilot.client.pools import any_pool_at, is_past, pool_at
from pilot.core.errors import PilotError
from pilot.core.trainer.trainer import AT_REST
from pilot.history.words import aside_words
from pilot.protocol.node_names import shortened
from pilot.protocol.pool_status import Answer, TrainerStatus
from pilot.protocol.requests import NodeList
from pilot.rundir.rundir import RunDir, is_abandoned, known_pools

if TYPE_CHECKING:
    from pilot.protocol.pool_client import PoolClient
    from pilot.service.requests.ended_pool import PastPool


@click.command("status")
@click.argument("trainer", required=False, shell_complete=candidates.trainers)
@in_any_pool
@answers
def status(root: Path, trainer: str | None) -> tuple[Any, ...]:
    """Show the pool, its trainers with what they wait for, and what is wrong now. (What happened: pilot events.) With
    TRAINER: which nodes it had when, what it used, why it ended. Works for a pool that is down, too.

    \b
    Examples:
      pilot status
      pilot status vit
    """
    pool, screen = any_pool_at(root), console()
    if trainer is None:
        answer = pool.status()
        return answer, lambda: show(screen, status_lines(answer, screen.width))
    history = pool.history(trainer)
    return history, lambda: show(screen, history_view(history, screen.width))


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
    answer = pool.trainers()
    if not everything:
        return answer, lambda: _list(root, answer.trainers)
    return answer, lambda: _list_all(root, pool)


def _list(root: Path, trainers: list[TrainerStatus]) -> None:
    screen, shown = console(), of_interest(trainers)
    _introduce(root, trainers)
    if shown:
        show(screen, trainer_rows(shown, screen.width))
    if left_out := len(trainers) - len(shown):
        click.echo(f"and {left_out} that ended earlier (pilot ls --all)")


def _list_all(root: Path, pool: PoolClient | PastPool) -> None:
    screen, status = console(), pool.status()
    _introduce(root, status.trainers)
    if status.trainers:
        show(screen, history_lines(status, screen.width))


def _introduce(root: Path, trainers: list[TrainerStatus]) -> None:
    if is_past(root):
        click.echo(f"the pool in {root} is down; its trainers:")
    if not trainers:
        click.echo("no trainer has been submitted")


@click.command("nodes")
@click.option(
    "--clear",
    "cleared",
    multiple=True,
    metavar="NODE",
    help="Forget the failures of this node and use it again. The short name will do.",
)
@in_any_pool
@answers
def nodes(root: Path, cleared: tuple[str, ...]) -> tuple[Any, ...]:
    """List the nodes with their trainers, and those that are set aside. If something fails on a node that works on
    others, the node is not used for that trainer for a while, and for no trainer once a second one fails there, too.

    \b
    Examples:
      pilot nodes
      pilot nodes --clear n17.fu6b
    """
    if cleared:
        answer = pool_at(root).clear(cleared)
        return answer, f"cleared {shortened(', '.join(answer.nodes))}"
    listed = any_pool_at(root).nodes()
    return listed, lambda: _show_nodes(listed)


def _show_nodes(listed: NodeList) -> None:
    screen = console()
    if listed.nodes:
        show(screen, node_lines(listed.nodes, listed.now_s, screen.width))
    else:
        click.echo("the pool has no nodes")
    texts = [*map(aside_words, listed.set_aside), *listed.remarks]
    show(screen, [Text(line) for text in texts for line in folded(text, screen.width)])


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
    answer, screen = any_pool_at(root).explain(trainer), console()
    lines = [Text(line) for sentence in answer.sentences for line in folded(sentence, screen.width)]
    return answer, lambda: show(screen, lines)


ANSWER_S = 3.0
"""How long to wait for each pool's answer."""


class PoolRow(Answer, frozen=True):
    """One pool."""

    run_dir: str  #: its run directory
    state: str  #: `up`, `draining`, `down`, `crashed` (pilot up continues it), or `no answer`
    coordinator: str = ""  #: its name; known, like everything below, only while the pool is up
    site: str = ""  #: the site's name
    only_nodes: str = ""  #: the nodes that it may use; empty: any
    planner: str | None = None  #: the planner of its last plan; null: no plan yet
    objective: str = ""  #: what its plans maximise
    nodes: int | None = None  #: how many nodes it has now
    trainers: int | None = None  #: how many trainers have not ended


class PoolList(Answer, frozen=True):
    """What `pilot pools --json` prints."""

    pools: list[PoolRow]  #: in the order of their run directories


@click.command("pools")
@click.option("--all", "everything", is_flag=True, help="Also list pools that are down.")
@answers
def pools(everything: bool) -> tuple[Any, ...]:
    """List your pools, with their nodes and run directories. --json always lists all, and tells more.

    Several pools can share a machine, each with its own nodes and objective: give each its own --run-dir and
    --only-nodes with pilot up.

    \b
    Examples:
      pilot pools
      pilot pools --all
    """
    rows = [_pool_row(root) for root in known_pools()]
    shown = [row for row in rows if everything or row.state != "down"]
    none = f"no pool is up{'; pilot pools --all also lists those that are down' if rows else ''}"
    return PoolList(pools=rows), (lambda: _print_pools(shown)) if shown else none


def _pool_row(root: Path) -> PoolRow:
    rundir = RunDir(root)
    try:
        if not rundir.connection.exists():
            return PoolRow(run_dir=str(root), state="down")
        if is_abandoned(rundir):
            return PoolRow(run_dir=str(root), state="crashed")
        answer = pool_at(root, ANSWER_S).status()
    except PilotError:
        return PoolRow(run_dir=str(root), state="no answer")
    return PoolRow(
        run_dir=str(root),
        state="draining" if answer.draining else "up",
        coordinator=answer.coordinator,
        site=answer.site,
        only_nodes=answer.only_nodes,
        planner=answer.solves.planner,
        objective=answer.objective,
        nodes=len(answer.pool),
        trainers=sum(trainer.phase not in AT_REST for trainer in answer.trainers),
    )


def _print_pools(rows: list[PoolRow]) -> None:
    columns = ["pool", "state", "site", "nodes", "trainers", "run directory"]
    cells = []
    for row in rows:
        counts = ["" if count is None else str(count) for count in (row.nodes, row.trainers)]
        cells.append([row.coordinator, row.state, row.site, *counts, _at_home(row.run_dir)])
    if any(row.only_nodes for row in rows):
        columns.insert(-1, "only nodes")
        for row, shown in zip(rows, cells, strict=True):
            shown.insert(-1, row.only_nodes)
    print_table(columns, [[cell or "-" for cell in each] for each in cells])


def _at_home(path: str) -> str:
    """``path`` as a shell with this home understands it, in short."""
    home = os.path.expanduser("~")  # noqa: PTH111  # Path.home() raises where there is none
    return f"~{path.removeprefix(home)}" if path.startswith(f"{home}/") else path
