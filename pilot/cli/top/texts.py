"""The texts of ``pilot top``, in the words of ``pilot status``; curves and rows of nodes as characters."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from rich.text import Text

from pilot.cli.rows import PHASE_STYLE, notes, number, row_cells, short
from pilot.cli.show import jobs_words, nodes_words
from pilot.cli.top.history import AWAY, Cell, Curves, StatusChange
from pilot.protocol.pool_status import PoolStatus, TrainerStatus

BARS = "▁▂▃▄▅▆▇█"
BLOCK, DOT = "█", "·"
COLOURS = ("green", "cyan", "magenta", "yellow", "blue", "red", "bright_green", "bright_cyan", "bright_magenta")
CURVE_WIDTH = 6
NAME_WIDTH = 16
"""A longer name is cut in the table; the line below the table shows it in full."""


def headline(status: PoolStatus) -> Text:
    """The pool and its jobs in the queue, in the words of ``pilot status``."""
    text = Text(f"{status.coordinator} on {status.site}, up {short(status.now_s)}: {nodes_words(status)}", style="bold")
    if status.draining:
        text.append(", shutting down", "yellow")
    text.append(f"\n{jobs_words(status.keeper)}", "not bold")
    if status.trouble:
        text.append(f"\n{status.trouble}", "red")
    return text


def trainer_cells(trainer: TrainerStatus, curves: Curves, trainers: list[str]) -> list[Text]:
    """A trainer's row."""
    own, (_, state, nodes, epoch, _, rate, _, left) = colour(trainer.trainer, trainers), row_cells(trainer)
    name = trainer.trainer if len(trainer.trainer) <= NAME_WIDTH else f"{trainer.trainer[: NAME_WIDTH - 1]}…"
    loss = number(trainer.metrics.get("loss"), ".4g")
    return [
        Text(name, style=own),
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
        text.append(f"; {note}", f"not bold {style}")
    return text


def event_line(happening: StatusChange) -> Text:
    """A line of the feed."""
    return Text.assemble((f"{short(happening.at_s):>7}  ", "dim"), happening.text)


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
