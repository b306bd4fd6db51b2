"""Curves and rows of nodes as characters of a terminal."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from rich.text import Text

from pilot.cli.top.history import AWAY, Cell

BARS = "▁▂▃▄▅▆▇█"
BLOCK, DOT = "█", "·"
COLOURS = ("green", "cyan", "magenta", "yellow", "blue", "red", "bright_green", "bright_cyan", "bright_magenta")


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
