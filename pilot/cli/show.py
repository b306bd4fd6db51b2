"""What people see: tables of trainers, of the pool and of decisions."""

from __future__ import annotations

import sys
from typing import Any

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from pilot.cli.asking import ENDED
from pilot.core.trainer import Phase
from pilot.io.pool_status import KeeperStatus, NodeStatus, PoolStatus, TrainerStatus

PHASE_STYLE = {
    Phase.RUNNING: "green",
    Phase.FAILED: "bold red",
    Phase.FINISHED: "cyan",
    Phase.PAUSED: "yellow",
    Phase.STARTING: "yellow",
}

ENDED_SHOWN = 10
"""Of the trainers that have ended ``pilot status`` shows so many, the last ones."""

PIPED_WIDTH = 160
"""Nobody's screen ends there: what goes to a file or a pipe is not folded at 80 columns."""


def console() -> Console:
    """Where tables are printed."""
    return Console(highlight=False, width=None if sys.stdout.isatty() else PIPED_WIDTH)


def trainer_table(trainers: list[TrainerStatus]) -> Table:
    """One row per trainer: where it stands."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("trainer", "phase", "nodes", "generation", "epoch", "step", "samples/s", "loss"):
        table.add_column(column, justify="left" if column in ("trainer", "phase") else "right")
    for t in trainers:
        table.add_row(
            t.trainer,
            Text(t.phase, style=PHASE_STYLE.get(t.phase, "")),
            _nodes(t),
            str(t.generation),
            str(t.epoch),
            str(t.step),
            number(t.samples_per_s, ".0f"),
            number(t.metrics.get("loss"), ".4f"),
        )
    return table


def _nodes(trainer: TrainerStatus) -> str:
    """Nodes that train, and ``+2`` for those that warm up."""
    warming = f" +{len(trainer.warming)}" if trainer.warming else ""
    return f"{len(trainer.nodes)}{warming}"


def number(value: float | None, form: str) -> str:
    """``value`` in ``form``, a dash where there is none."""
    return "-" if value is None else format(value, form)


def status_view(status: PoolStatus, *, nodes: bool = False) -> Group:
    """All of ``pilot status``; ``nodes``: with each node of the pool."""
    trainers = _of_interest(status.trainers)
    waits = f"{status.trouble}: decisions wait until there is room, trainers train on"
    parts: list[Any] = [_line(_headline(status)), _line(_jobs(status.keeper))]
    parts += [_line(waits, "bold red")] if status.trouble else []
    parts += [_line(nodes_line(status)), Text(), trainer_table(trainers)]
    if left_out := len(status.trainers) - len(trainers):
        parts += [_line(f"and {left_out} that ended before these (pilot ls lists them)")]
    parts += [_line(line, "red") for t in trainers if t.phase is Phase.FAILED for line in _failure(t)]
    parts += [_line(f"{t.trainer}: {line}", "yellow") for t in trainers for line in t.remarks]
    parts += [_line(line, "yellow") for line in status.remarks]
    if nodes:
        parts += [Text(), pool_table(status.pool, status.now_s)]
    return Group(*parts, Text(), _line(decisions_line(status)))


def _of_interest(trainers: list[TrainerStatus]) -> list[TrainerStatus]:
    """Those that have not ended, and the last ones that have."""
    ended = sorted((t for t in trainers if t.phase in ENDED), key=lambda t: t.ended_s or 0.0)
    old = {t.trainer for t in ended[:-ENDED_SHOWN]}
    return [t for t in trainers if t.trainer not in old]


def nodes_line(status: PoolStatus) -> str:
    """How many nodes there are, and for what."""
    counts = {
        "train": sum(len(t.nodes) for t in status.trainers),
        "warm up": sum(len(t.warming) for t in status.trainers),
        "idle": sum(n.trainer is None and not n.leaving and not n.set_aside for n in status.pool),
        "leave": sum(n.leaving for n in status.pool),
        "set aside": sum(n.set_aside for n in status.pool),
    }
    told = ", ".join(f"{count} {what}" for what, count in counts.items() if count)
    return f"nodes: {len(status.pool)}{f'; {told}' if told else ''}"


def _line(text: str, style: str = "") -> Text:
    """Not folded: a path that one copies stays whole, and the terminal folds it by itself."""
    return Text(text, style=style, no_wrap=True, overflow="ignore")


def _headline(status: PoolStatus) -> str:
    drains = ", draining" if status.draining else ""
    return f"pool {status.coordinator} on {status.site}, up for {status.now_s:.0f} s{drains}"


def _jobs(keeper: KeeperStatus) -> str:
    """Our jobs in the queue, and what keeps us from more."""
    why = f" ({keeper.waits_for})" if keeper.pending and keeper.waits_for else ""
    away = f", {keeper.suspended} of them suspended" if keeper.suspended else ""
    counts = f"{keeper.running} run, {keeper.pending} wait{why}, {keeper.leaving} leave{away}"
    ended = ", ".join(f"{count} {ending}" for ending, count in keeper.endings.items())
    parts = [f"pilot jobs: {counts}", ended and f"ended: {ended}", keeper.held_back, keeper.trouble]
    return "; ".join(part for part in parts if part)


def _failure(trainer: TrainerStatus) -> list[str]:
    return [f"{trainer.trainer} failed:", *(f"  {line}" for line in trainer.reason.splitlines())]


def pool_table(nodes: list[NodeStatus], now_s: float) -> Table:
    """One row per node."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("node", "trainer", "here for"):
        table.add_column(column)
    for n in nodes:
        marks = [word for word, holds in (("leaving", n.leaving), ("set aside", n.set_aside)) if holds]
        mark = f" ({', '.join(marks)})" if marks else ""
        table.add_row(f"{n.node}{mark}", n.trainer or "-", f"{now_s - n.joined_s:.0f} s")
    return table


def decisions_line(status: PoolStatus) -> str:
    """How plans are made and what the pool was worth."""
    solves, use = status.solves, status.utilisation
    took = solves.answer_s
    time = f", {took.median * 1000:.0f} ms (median; worst {took.max * 1000:.0f} ms)" if took else ""
    u = f"{use.u:.1%}" if use.u is not None else "-"
    return (
        f"{solves.count} plans by {solves.planner or '-'}, the last one {solves.last_status or '-'}{time}; "
        f"{status.node_seconds:.0f} node-seconds, U {u} on {use.eq_nodes:.2f} eq-nodes"
    )
