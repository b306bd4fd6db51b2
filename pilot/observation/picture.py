"""The picture of a run: nodes over time, coloured by trainer, with preemptions and losses marked."""

from __future__ import annotations

from functools import partial
from typing import Any

from matplotlib import colormaps
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from pilot.io.figures import drawn, label
from pilot.observation.timeline import Fate, Timeline, Use

STYLE = {
    Fate.NOTICE: ("v", "#d4a000", "preempted: notice"),
    Fate.GONE: ("s", "#d4a000", "preempted: gone"),
    Fate.LOST: ("X", "#c0202a", "killed without notice"),
}
IDLE = "#e6e6e6"


def draw(timeline: Timeline) -> bytes:
    """Return the picture, in PNG."""
    height = 1.6 + 0.42 * max(1, len(timeline.nodes))
    return drawn(partial(_draw, timeline=timeline), 11, height, "png", dpi=120)


def _draw(figure: Figure, timeline: Timeline) -> None:
    axes = figure.subplots()
    rows = {node: row for row, node in enumerate(timeline.nodes)}
    colours = _colours(timeline)
    for span in timeline.spans:
        colour = colours[span.trainer] if span.trainer is not None else IDLE
        warming = span.use is Use.WARMING
        axes.barh(
            rows[span.node],
            span.end_s - span.start_s,
            left=span.start_s,
            height=0.78,
            color=colour,
            alpha=0.35 if warming else 1.0,
            hatch="///" if warming else None,
            edgecolor="white",
            linewidth=0.0,
        )
    _mark(axes, timeline, rows)
    axes.set_yticks(range(len(rows)), map(label, rows))
    axes.invert_yaxis()
    axes.set_xlim(0, max(timeline.end_s, 1e-9))
    axes.set_xlabel("seconds since the coordinator started")
    axes.set_title("Nodes over time (hatched: warming up or waiting; grey: idle)")
    axes.spines[["top", "right"]].set_visible(False)
    _legend(axes, colours)


def _colours(timeline: Timeline) -> dict[Any, Any]:
    palette = colormaps["tab10"]
    trainers = dict.fromkeys(s.trainer for s in timeline.spans if s.trainer is not None)
    return {trainer: palette(number % 10) for number, trainer in enumerate(trainers)}


def _mark(axes: Any, timeline: Timeline, rows: dict[Any, int]) -> None:
    for fate, (marker, colour, _) in STYLE.items():
        points = [(m.at_s, rows[m.node]) for m in timeline.marks if m.fate is fate and m.node in rows]
        if points:
            axes.scatter(*zip(*points, strict=True), marker=marker, s=90, color=colour, edgecolor="black", zorder=3)


def _legend(axes: Any, colours: dict[Any, Any]) -> None:
    handles: list[Any] = [Patch(color=colour, label=label(trainer)) for trainer, colour in colours.items()]
    for marker, colour, fate in STYLE.values():
        handles.append(
            Line2D([], [], marker=marker, color=colour, markeredgecolor="black", linestyle="", markersize=9, label=fate)
        )
    axes.legend(handles=handles, loc="upper left", bbox_to_anchor=(1.005, 1.0), frameon=False)
