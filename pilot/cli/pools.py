"""``pilot pools``: this user's pools, side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from pilot.cli.asking import AT_REST, pool_at
from pilot.cli.options import answers
from pilot.core.errors import PilotError
from pilot.protocol.pool_status import Answer
from pilot.rundir.rundir import RunDir, is_abandoned, known_pools

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
def command(everything: bool) -> tuple[Any, ...]:
    """List your pools, with their nodes, objectives and run directories. --json always lists all.

    Several pools can share a machine, each with its own nodes and objective: give each its own --run-dir and
    --only-nodes with pilot up.

    \b
    Examples:
      pilot pools
      pilot pools --all
    """
    rows = [_row(root) for root in known_pools()]
    shown = [row for row in rows if everything or row.state != "down"]
    none = f"no pool is up{'; pilot pools --all also lists those that are down' if rows else ''}"
    return PoolList(pools=rows), (lambda: _print(shown)) if shown else none


def _row(root: Path) -> PoolRow:
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


def _print(rows: list[PoolRow]) -> None:
    from pilot.cli.show import print_table

    columns = ("pool", "state", "site", "nodes", "trainers", "objective", "only nodes", "run directory")
    cells = []
    for row in rows:
        counts = ["" if count is None else str(count) for count in (row.nodes, row.trainers)]
        cells.append((row.coordinator, row.state, row.site, *counts, row.objective, row.only_nodes, row.run_dir))
    print_table(columns, [[cell or "-" for cell in each] for each in cells])
