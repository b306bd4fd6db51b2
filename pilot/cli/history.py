"""Accounting of trainers: which nodes they had when, what they used, why they ended."""

from __future__ import annotations

import time
from collections.abc import Sequence

from rich.text import Text

from pilot.cli.asking import ENDED
from pilot.cli.rows import CHECKED, INDENT, NAME_WIDTH, PHASE_STYLE, counts_epochs, folded, short
from pilot.core.budget import unit
from pilot.core.evidence import headline
from pilot.io.pool_status import PoolStatus, TrainerHistory, TrainerStatus
from pilot.observation.words import amount, counted

COLUMNS = ("trainer", "state", "submitted", "elapsed", "node-hours", "samples", "steps")
LEFT_ALIGNED = (0, 1, 2)
SPAN_COLUMNS = ("node", "job", "from", "until", "for")


def history_lines(status: PoolStatus, width: int) -> list[Text]:
    """A row per trainer with its times and usage, and below it the reason why it ended."""
    rows = [_row(t, status.began_unix_s, status.now_s) for t in status.trainers]
    first, *lines = _table([COLUMNS, *rows], LEFT_ALIGNED)
    first.stylize("bold")
    out = [first]
    for t, line in zip(status.trainers, lines, strict=True):
        line.highlight_words([t.phase], PHASE_STYLE.get(t.phase, ""))
        if len(t.trainer) > NAME_WIDTH:
            out.append(Text(t.trainer))
        out.append(line)
        out += [Text(text, "dim") for text in folded(headline(t.reason) if t.reason else t.held, width, INDENT)]
    if status.charge_factor != 1:
        out.append(Text(f"node-hours are {unit(status.charge_factor)}"))
    if sum(t.phase in ENDED for t in status.trainers) >= status.ended_kept:
        out.append(Text(f"ended trainers before the last {status.ended_kept} are not listed; pilot report shows all"))
    return out


def _row(t: TrainerStatus, began_s: float, now_s: float) -> tuple[str, ...]:
    return (
        t.trainer if len(t.trainer) <= NAME_WIDTH else "",
        t.phase,
        moment(began_s + t.submitted_s),
        short((t.ended_s if t.ended_s is not None else now_s) - t.submitted_s),
        f"{t.used_node_hours:.2f}",
        f"{t.samples:,}" if counts_epochs(t) else "-",
        f"{t.step:,}",
    )


def history_view(told: TrainerHistory, width: int) -> list[Text]:
    """The whole output of ``pilot status NAME``."""
    lines = [Text(line) for text in _sentences(told, told.trainer) for line in folded(text, width)]
    if told.held_nodes:
        first, *spans = _table([SPAN_COLUMNS, *_spans(told)], range(4))
        first.stylize("bold")
        lines += [Text(), first, *spans]
    return lines


def _spans(told: TrainerHistory) -> list[tuple[str, ...]]:
    return [
        (
            held.node,
            held.job or "-",
            moment(told.began_unix_s + held.from_s),
            moment(told.began_unix_s + held.until_s) if held.until_s is not None else "now",
            short((held.until_s if held.until_s is not None else told.now_s) - held.from_s),
        )
        for held in told.held_nodes
    ]


def _sentences(told: TrainerHistory, t: TrainerStatus) -> list[str]:
    began_s = told.began_unix_s
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
        f"used {amount(t.used_node_hours)}{budget} {unit(told.charge_factor)}: {counted(t.step, 'step')}{samples}",
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


def _table(rows: Sequence[Sequence[str]], left: Sequence[int]) -> list[Text]:
    """``rows`` as lines; the columns in ``left`` are left-aligned, the others right-aligned."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        Text(
            "  ".join(
                cell.ljust(width) if column in left else cell.rjust(width)
                for column, (cell, width) in enumerate(zip(row, widths, strict=True))
            )
        )
        for row in rows
    ]


def moment(unix_s: float) -> str:
    """The local day and time, for a table."""
    return time.strftime("%b %d %H:%M:%S", time.localtime(unix_s))


def date(unix_s: float) -> str:
    """The local date, with the year, and time."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(unix_s))
