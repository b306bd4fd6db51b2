"""Curves of one trainer as SVG (matplotlib, without a display)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

from matplotlib.axes import Axes

from pilot.core.goal import BY_SESSION
from pilot.io.figures import label, svg
from pilot.observation.course import Course, Point

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
