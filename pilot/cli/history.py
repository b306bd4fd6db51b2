"""What became of trainers, as an accounting tool tells it: what they held when, what they used, why they ended."""

from __future__ import annotations

import time
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from pilot.cli.asking import ENDED
from pilot.cli.rows import PHASE_STYLE
from pilot.core.budget import unit
from pilot.core.evidence import headline
from pilot.io.pool_status import TrainerHistory, TrainerStatus
from pilot.observation.words import duration


def history_table(trainers: list[TrainerStatus], began_unix_s: float, now_s: float) -> Table:
    """One row per trainer: when it was there, what it used, why it ended."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("trainer", "phase", "submitted", "elapsed", "node-hours", "samples", "steps", "why"):
        left = column in ("trainer", "phase", "submitted", "why")
        table.add_column(column, justify="left" if left else "right", no_wrap=column != "why")
    for t in trainers:
        table.add_row(
            t.trainer,
            Text(t.phase, style=PHASE_STYLE.get(t.phase, "")),
            moment(began_unix_s + t.submitted_s),
            duration((t.ended_s if t.ended_s is not None else now_s) - t.submitted_s),
            f"{t.used_node_hours:.2f}",
            f"{t.samples:,}",
            f"{t.step:,}",
            Text(headline(t.reason) if t.reason else t.held),
        )
    return table


def history_view(told: TrainerHistory) -> Group:
    """All of ``pilot status NAME``."""
    t, began_s = told.trainer, told.began_unix_s
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("node", "job", "from", "until", "for"):
        table.add_column(column, justify="right" if column == "for" else "left")
    for held in told.held_nodes:
        until_s = held.until_s if held.until_s is not None else told.now_s
        ended = moment(began_s + until_s) if held.until_s is not None else "now"
        table.add_row(held.node, held.job or "-", moment(began_s + held.from_s), ended, duration(until_s - held.from_s))
    held_nodes: list[Any] = [Text(), table] if told.held_nodes else []
    return Group(*(Text(line, no_wrap=True, overflow="ignore") for line in _lines(told, t)), *held_nodes)


def _lines(told: TrainerHistory, t: TrainerStatus) -> list[str]:
    began_s = told.began_unix_s
    stands = f"{t.trainer} is {t.phase}" if t.phase not in ENDED else f"{t.trainer} {t.phase}"
    reason = (t.reason or t.held).splitlines() or [""]
    lines = [f"{stands}{f': {reason[0]}' if reason[0] else ''}", *(f"  {line}" for line in reason[1:])]
    lines.append(f"submitted {moment(began_s + t.submitted_s)}")
    if t.started_s is not None:
        lines[-1] += f", first trained {moment(began_s + t.started_s)}"
    if t.ended_s is not None:
        lines[-1] += f", ended {moment(began_s + t.ended_s)}"
    counts = f"{t.preemptions} preempted and {t.losses} lost nodes"
    kept = f"the newest {t.checkpoints_kept}" if t.checkpoints_kept is not None else "as many as the site says"
    budget = f" of its budget of {t.budget_node_hours:g}" if t.budget_node_hours is not None else ""
    return [
        *lines,
        f"used {t.used_node_hours:.3g}{budget} {unit(told.charge_factor)}: {t.step:,} steps, {t.samples:,} samples",
        f"{t.rescales_up} changes to more nodes, {t.rescales_down} to fewer; {counts}; {t.lost_steps} steps lost",
        f"its files: {t.directory}; of its checkpoints it keeps {kept}",
        *t.remarks,
    ]


def moment(unix_s: float) -> str:
    """Date and time of day here."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(unix_s))
