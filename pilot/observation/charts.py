"""Curves of one trainer as SVG (matplotlib, without a display).

The picture of a run: nodes over time, coloured by trainer, with preemptions and losses marked.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from pilot.core.goal import BY_SESSION
from pilot.io.figures import drawn, label, svg
from pilot.observation.course import Course, Point
from pilot.observation.timeline import Fate, Timeline, Use

METRICS_MAX = 6
SIZE = (5.4, 2.6)


def curves_of(course: Course, now_s: float) -> list[tuple[str, str]]:
    """(title, SVG) of a trainer's nodes and rate over time, and of each of its metrics over samples."""
    drawn = []
    if course.rescales:
        ended_s = now_s if course.ended_s is None else course.ended_s
        drawn.append(("Nodes and samples/s over time", svg(partial(_rate, course=course, ended_s=ended_s), *SIZE)))
    names = dict.fromkeys(name for point in course.points for name in point.metrics if name not in BY_SESSION)
    for name in list(names)[:METRICS_MAX]:
        points = [p for p in course.points if math.isfinite(p.metrics.get(name, math.nan))]
        if points:
            drawn.append((f"{name} over samples", svg(partial(_metric, points=points, name=name), *SIZE)))
    return drawn


def _rate(axes: Axes, course: Course, ended_s: float) -> None:
    edges = [rescale.at_s for rescale in course.rescales] + [max(ended_s, course.rescales[-1].at_s)]
    axes.stairs([rescale.after for rescale in course.rescales], edges, fill=True, color="0.85")
    axes.set(xlabel="time (s)", ylabel="nodes")
    known = [(p.at_s, p.samples_per_s) for p in course.points if p.samples_per_s is not None]
    if known:
        rates = axes.twinx()
        rates.plot([at_s for at_s, _ in known], [rate for _, rate in known], linewidth=1)
        rates.set_ylabel("samples/s")
        rates.set_ylim(bottom=0)


def _metric(axes: Axes, points: Sequence[Point], name: str) -> None:
    axes.plot([point.samples for point in points], [point.metrics[name] for point in points], linewidth=1)
    axes.set(xlabel="samples", ylabel=label(name))


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
