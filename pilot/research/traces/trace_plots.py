"""Plots of a trace (matplotlib, without a display)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from pilot.core.errors import UserError
from pilot.history.figures import drawn
from pilot.host.output_files import write_output
from pilot.research.traces.changes import Change
from pilot.research.traces.fragments import pool_size
from pilot.research.traces.statistics import change_chance, fragment_lengths, preemption_chance

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WITHIN_S = (10, 20, 30, 45, 60, 90, 120, 170, 240, 300, 450, 600, 900, 1200)


def plot_trace(path: Path, changes: Sequence[Change]) -> None:
    """Plot fragment lengths (FreeTrain Fig 1), pool size over time and the chance of a preemption (Fig 7a)."""
    try:
        image = drawn(partial(_draw, changes=changes), 12, 3.6, path.suffix.removeprefix(".") or "png")
    except ValueError as error:
        raise UserError(f"cannot write the plot {path}: {error}") from None
    write_output(path, image)


def _draw(figure: Figure, changes: Sequence[Change]) -> None:
    lengths, size, chance = figure.subplots(1, 3)
    sorted_s = fragment_lengths(changes)
    lengths.semilogx(np.maximum(sorted_s, 1.0), np.arange(1, len(sorted_s) + 1) / len(sorted_s))
    lengths.set(xlabel="fragment length (s)", ylabel="share of fragments")
    pool = pool_size(changes)
    size.stairs(pool.size, pool.time_s / 3600, fill=True, alpha=0.5)
    size.set(xlabel="time (h)", ylabel="nodes in the pool")
    chance.plot(WITHIN_S, [preemption_chance(changes, t) for t in WITHIN_S], marker=".", label="a node leaves")
    chance.plot(WITHIN_S, [change_chance(changes, t) for t in WITHIN_S], marker=".", label="the pool changes")
    chance.set(xlabel="within (s) of an event", ylabel="chance", ylim=(0, 1))
    chance.legend(loc="lower right")
