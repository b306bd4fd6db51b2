"""What ``pilot top`` remembers of the pool's answers, and the texts that it shows."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from rich.text import Text

from pilot.cli.rows import PHASE_STYLE, cut, moment, notes, number, row_cells
from pilot.cli.show import pool_texts
from pilot.core.trainer.trainer import Phase
from pilot.protocol.node_names import shortened
from pilot.protocol.pool_status import PoolStatus, TrainerStatus

POINTS_MAX = 240
BARS = "▁▂▃▄▅▆▇█"
BLOCK, DOT = "█", "·"
COLOURS = ("green", "cyan", "magenta", "yellow", "blue", "red", "bright_green", "bright_cyan", "bright_magenta")
CURVE_WIDTH = 6
NAME_WIDTH = 16
"""A longer name is cut in the table; the line below the table shows it in full."""

AWAY = ""
"""In a node's row: the node was not in the pool."""

Cell = str | None
"""In a node's row: the trainer that had the node, None if no trainer did, or :data:`AWAY`."""


@dataclass(slots=True)
class Curves:
    """A trainer's values over time, oldest first; at most :data:`POINTS_MAX`."""

    rate: deque[float] = field(default_factory=lambda: deque(maxlen=POINTS_MAX))
    loss: deque[float] = field(default_factory=lambda: deque(maxlen=POINTS_MAX))


@dataclass(frozen=True, slots=True)
class StatusChange:
    """Something that changed between two answers, at ``at_unix_s``, in seconds since 1970."""

    at_unix_s: float
    text: str


class History:
    """Remembers each answer in turn. Pure: no requests and no clock.

    Parameters
    ----------
    column_s : the time that one column of a node's row stands for
    """

    def __init__(self, column_s: float) -> None:
        self.column_s = column_s
        self.curves: dict[str, Curves] = {}
        self.rows: dict[str, deque[Cell]] = {}
        self._last: PoolStatus | None = None
        self._column = -1

    def note(self, status: PoolStatus) -> list[StatusChange]:
        """Take the next answer; returns what is new in it."""
        new = changes(self._last, status)
        self._note_curves(status.trainers)
        self._note_nodes(status)
        self._last = status
        return new

    def _note_curves(self, trainers: list[TrainerStatus]) -> None:
        for trainer in trainers:
            curves = self.curves.setdefault(trainer.trainer, Curves())
            if trainer.phase is Phase.RUNNING:
                curves.rate.append(trainer.samples_per_s or 0.0)
            loss = trainer.metrics.get("loss")
            if loss is not None and (not curves.loss or curves.loss[-1] != loss):
                curves.loss.append(loss)

    def _note_nodes(self, status: PoolStatus) -> None:
        """Add one cell for each column of time that has begun; the newest cell shows who has the node now."""
        column = int(status.now_s / self.column_s)
        new = 1 if self._column < 0 else min(max(0, column - self._column), POINTS_MAX)
        self._column = column
        users = {node.node: node.trainer for node in status.pool}
        for node in users:
            self.rows.setdefault(node, deque(maxlen=POINTS_MAX))
        for node, row in list(self.rows.items()):
            row.extend([users.get(node, AWAY)] * new)
            if new == 0 and row:
                row[-1] = users.get(node, AWAY)
            if all(cell == AWAY for cell in row):
                del self.rows[node]


def changes(before: PoolStatus | None, after: PoolStatus) -> list[StatusChange]:
    """The differences that are of interest to people; for a first answer, the last decisions."""
    if before is None:
        return [StatusChange(after.began_unix_s + decision.at_s, decision.text) for decision in after.decisions]
    texts = [*_nodes(before, after)]
    known = {trainer.trainer: trainer for trainer in before.trainers}
    for trainer in after.trainers:
        texts += _trainer(known.get(trainer.trainer), trainer)
    texts += [remark for remark in after.remarks if remark not in before.remarks]
    if after.draining and not before.draining:
        texts.append("the pool drains")
    return [StatusChange(after.began_unix_s + after.now_s, shortened(text)) for text in texts]


def _nodes(before: PoolStatus, after: PoolStatus) -> list[str]:
    old, new = {n.node: n for n in before.pool}, {n.node: n for n in after.pool}
    texts = [f"{node} joined" for node in new if node not in old]
    texts += [f"{node} got notice" for node, n in new.items() if n.leaving and node in old and not old[node].leaving]
    return texts + [f"{node} left" if n.leaving else f"{node} was lost" for node, n in old.items() if node not in new]


def _trainer(before: TrainerStatus | None, after: TrainerStatus) -> list[str]:
    name = after.trainer
    if before is None:
        return [f"{name} submitted"]
    texts = []
    if len(before.nodes) != len(after.nodes):
        texts.append(f"{name}: {len(before.nodes)} → {len(after.nodes)} nodes")
    if before.phase is not after.phase:
        reason = after.reason.splitlines()[0] if after.reason and after.phase is Phase.FAILED else ""
        texts.append(f"{name} {after.phase}" + (f": {reason}" if reason else ""))
    return texts + [f"{name}: {remark}" for remark in after.remarks if remark not in before.remarks]


def headline(status: PoolStatus) -> Text:
    """The pool and its jobs in the queue, as ``pilot status`` shows them."""
    return Text("\n").join(Text(text, style) for text, style in pool_texts(status))


def trainer_cells(trainer: TrainerStatus, curves: Curves, trainers: list[str]) -> list[Text]:
    """A trainer's row."""
    own, (_, state, nodes, epoch, _, rate, _, left) = colour(trainer.trainer, trainers), row_cells(trainer)
    loss = number(trainer.metrics.get("loss"), ".4g")
    return [
        Text(cut(trainer.trainer, NAME_WIDTH), style=own),
        Text(f" {state}", style=PHASE_STYLE.get(trainer.phase, "")),
        *(Text(f" {cell}", justify="right") for cell in (nodes, epoch, rate)),
        Text(f" {sparkline(curves.rate, CURVE_WIDTH)}", style=own),
        Text(f" {loss}", justify="right"),
        Text(f" {sparkline(curves.loss, CURVE_WIDTH)}", style=own),
        Text(f" {left}", justify="right"),
    ]


def about(trainer: TrainerStatus) -> Text:
    """The selected trainer: what it is waiting for, and its metrics."""
    text = Text(trainer.trainer, style="bold")
    for note, style in notes(trainer):
        text.append(f"; {shortened(note)}", f"not bold {style}")
    return text


def event_line(change: StatusChange) -> Text:
    """A line of the feed."""
    return Text.assemble((f"{moment(change.at_unix_s)}  ", "dim"), change.text)


def sparkline(values: Iterable[float], width: int) -> str:
    """The newest ``width`` finite values, from the lowest bar for the least to the highest for the greatest."""
    shown = [value for value in values if math.isfinite(value)][-width:]
    if not shown:
        return ""
    low, high = min(shown), max(shown)
    top = len(BARS) - 1
    scale = top / (high - low) if high > low else 0.0
    return "".join(BARS[round((value - low) * scale)] for value in shown)


def colour(trainer: str, trainers: Sequence[str]) -> str:
    """The trainer's colour, by its position in the order of submission; colours repeat after the last."""
    return COLOURS[trainers.index(trainer) % len(COLOURS)] if trainer in trainers else "white"


def strip(row: Iterable[Cell], trainers: Sequence[str], width: int) -> Text:
    """A node's newest ``width`` columns of time: coloured by trainer, a dot where it was idle."""
    text = Text(no_wrap=True)
    for user in list(row)[-width:]:
        if user == AWAY:
            text.append(" ")
        elif user is None:
            text.append(DOT, "dim")
        else:
            text.append(BLOCK, colour(user, trainers))
    return text
