"""A pool's life as one self-contained HTML page."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files

from jinja2 import Environment

from pilot.core.evidence import headline
from pilot.core.ids import TrainerId
from pilot.core.trainer import Trainer
from pilot.io.printable import printable
from pilot.observation.charts import curves_of
from pilot.observation.course import Course
from pilot.observation.story import Happening
from pilot.observation.timeline import Fate, Timeline, Use

CHARTS_MAX = 40
"""How many trainers get curves: those with the most samples. The table lists all of them."""

EVENTS_MAX = 2000
"""How many of the newest events are listed."""

PALETTE = ("#4e79a7", "#f28e2b", "#59a14f", "#b07aa1", "#76b7b2", "#edc948", "#9c755f", "#ff9da7", "#499894", "#d37295")
MARKS = {Fate.NOTICE: "#d4a000", Fate.GONE: "#d4a000", Fate.LOST: "#c0202a"}


@dataclass(frozen=True, slots=True)
class Life:
    """What the page shows."""

    name: str  #: of the pool
    summary: Sequence[str]  #: the pool's life in sentences
    timeline: Timeline  #: which trainer was on which node when
    trainers: Mapping[TrainerId, Trainer]  #: by name
    courses: Mapping[TrainerId, Course]  #: the course of each trainer, by name
    happened: Sequence[Happening]  #: in time order


REMOVED = "#9a9a9a"
"""Colour of trainers that were removed."""


@dataclass(frozen=True, slots=True)
class Bar:
    """A rectangle in the strip, with row and times in the SVG's units."""

    row: int
    start_s: float
    length_s: float
    colour: str
    faint: bool
    label: str


def render(life: Life) -> str:
    """The page's HTML."""
    text, script = (files(__package__).joinpath(name).read_text() for name in ("page.html.j2", "page.js"))
    template = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True).from_string(text)
    colours = {name: PALETTE[number % len(PALETTE)] for number, name in enumerate(life.trainers)}
    charted = sorted(life.trainers, key=lambda name: -life.trainers[name].samples)[:CHARTS_MAX]
    page = template.render(
        life=life,
        script=script,
        script_hash=f"sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}",
        bars=_bars(life.timeline, colours),
        marks=_marks(life.timeline),
        rows=[_row(life.trainers[name], life.courses[name]) for name in life.trainers],
        colours=colours,
        charts={name: curves_of(life.courses[name], life.timeline.end_s) for name in life.trainers if name in charted},
        without_charts=len(life.trainers) - len(charted),
        events=life.happened[-EVENTS_MAX:],
        events_left_out=max(0, len(life.happened) - EVENTS_MAX),
    )
    return printable(page)


def _bars(timeline: Timeline, colours: Mapping[TrainerId, str]) -> list[Bar]:
    rows = {node: row for row, node in enumerate(timeline.nodes)}
    return [
        Bar(
            row=rows[span.node],
            start_s=span.start_s,
            length_s=span.end_s - span.start_s,
            colour=colours.get(span.trainer, REMOVED) if span.trainer is not None else "#e4e4e4",
            faint=span.use is Use.WARMING,
            label=f"{span.node}: {span.trainer or 'idle'}"
            f"{' (starting)' if span.use is Use.WARMING else ''}, {span.start_s:.0f} to {span.end_s:.0f} s",
        )
        for span in timeline.spans
    ]


def _marks(timeline: Timeline) -> list[Bar]:
    rows = {node: row for row, node in enumerate(timeline.nodes)}
    return [
        Bar(rows[mark.node], mark.at_s, 0.0, MARKS[mark.fate], faint=False, label=f"{mark.node}: {mark.fate}")
        for mark in timeline.marks
        if mark.fate in MARKS and mark.node in rows
    ]


def _row(trainer: Trainer, course: Course) -> dict[str, str]:
    paused = [rescale.paused_s for rescale in course.rescales if rescale.paused_s is not None]
    return {
        "trainer": trainer.id,
        "state": str(trainer.phase),
        "epoch": str(trainer.epoch),
        "steps": f"{trainer.step:,}",
        "samples": f"{trainer.samples:,}",
        "node changes": str(max(0, len(course.rescales) - 1)),
        "longest pause": f"{max(paused):.2f} s" if paused else "-",
        "repeated steps": str(trainer.counts.lost_steps),
        "reason for the end": headline(trainer.reason) if trainer.reason else "",
    }
