"""Accounting of trainers: which nodes they had when, what they used, why they ended."""

from __future__ import annotations

import time

from rich.text import Text

from pilot.cli.asking import ENDED
from pilot.cli.rows import CHECKED, aligned, counts_epochs, folded, rows_with_notes, short
from pilot.core.pool.evidence import headline
from pilot.core.trainer.budget import unit
from pilot.history.words import amount, counted
from pilot.protocol.pool_status import PoolStatus, TrainerHistory, TrainerStatus

COLUMNS = ("trainer", "state", "submitted", "elapsed", "node-hours", "samples", "steps")
SPAN_COLUMNS = ("node", "job", "from", "until", "for")


def history_lines(status: PoolStatus, width: int) -> list[Text]:
    """A row per trainer with its times and usage, and below it the reason why it ended."""

    def cells(t: TrainerStatus) -> tuple[str, ...]:
        return (
            t.trainer,
            t.phase,
            moment(status.began_unix_s + t.submitted_s),
            short((t.ended_s if t.ended_s is not None else status.now_s) - t.submitted_s),
            f"{t.used_node_hours:.2f}",
            f"{t.samples:,}" if counts_epochs(t) else "-",
            f"{t.step:,}",
        )

    def why(t: TrainerStatus) -> list[tuple[str, str]]:
        return [(headline(t.reason) if t.reason else t.held, "dim")]

    out = rows_with_notes(COLUMNS, 3, status.trainers, cells, why, width)
    if status.charge_factor != 1:
        out.append(Text(f"node-hours are {unit(status.charge_factor)}"))
    if sum(t.phase in ENDED for t in status.trainers) >= status.ended_kept:
        out.append(Text(f"ended trainers before the last {status.ended_kept} are not listed; pilot report shows all"))
    return out


def history_view(answer: TrainerHistory, width: int) -> list[Text]:
    """The whole output of ``pilot status NAME``."""
    lines = [Text(line) for text in _sentences(answer, answer.trainer) for line in folded(text, width)]
    if answer.held_nodes:
        lines += [Text(), *aligned([SPAN_COLUMNS, *_spans(answer)], left=4)]
    return lines


def _spans(answer: TrainerHistory) -> list[tuple[str, ...]]:
    return [
        (
            held.node,
            held.job or "-",
            moment(answer.began_unix_s + held.from_s),
            moment(answer.began_unix_s + held.until_s) if held.until_s is not None else "now",
            short((held.until_s if held.until_s is not None else answer.now_s) - held.from_s),
        )
        for held in answer.held_nodes
    ]


def _sentences(answer: TrainerHistory, t: TrainerStatus) -> list[str]:
    began_s = answer.began_unix_s
    stands = f"{t.trainer} is {t.phase}" if t.phase not in ENDED else f"{t.trainer} {t.phase}"
    reason = (t.reason or t.held).splitlines() or [""]
    lines = [f"{stands}{f': {reason[0]}' if reason[0] else ''}", *(f"  {line}" for line in reason[1:])]
    lines.append(f"submitted {date(began_s + t.submitted_s)}")
    if t.started_s is not None:
        lines[-1] += f", first trained {date(began_s + t.started_s)}"
    if t.ended_s is not None:
        lines[-1] += f", ended {date(began_s + t.ended_s)}"
    nodes = f"nodes: {t.preemptions} preempted, {t.losses} lost{_lost(t)}"
    samples = f", {counted(t.samples, 'sample')}" if counts_epochs(t) else ""
    kept = f"the newest {t.checkpoints_kept}" if t.checkpoints_kept is not None else "the site's default number"
    budget = f" of its budget of {t.budget_node_hours:g}" if t.budget_node_hours is not None else ""
    return [
        *lines,
        f"used {amount(t.used_node_hours)}{budget} {unit(answer.charge_factor)}: {counted(t.step, 'step')}{samples}",
        f"rescales: {t.rescales_up} up, {t.rescales_down} down; {nodes}",
        f"files: {t.directory}",
        f"checkpoints kept: {kept}",
        *([t.check_text] if t.check in CHECKED else []),
        *t.remarks,
    ]


def _lost(t: TrainerStatus) -> str:
    """The work that had to be repeated; empty for a trainer that never trained."""
    if t.started_s is None:
        return ""
    return f"; {counted(t.lost_steps, 'step')} lost" if counts_epochs(t) else "; unsaved work was repeated"


def moment(unix_s: float) -> str:
    """The local day and time, for a table."""
    return time.strftime("%b %d %H:%M:%S", time.localtime(unix_s))


def date(unix_s: float) -> str:
    """The local date, with the year, and time."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(unix_s))
