"""A pool's life as one self-contained HTML page."""

from __future__ import annotations

import base64
import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.resources import files
from typing import TYPE_CHECKING

from jinja2 import Environment

from pilot.core.ids import TrainerId
from pilot.core.pool.evidence import headline
from pilot.core.trainer.trainer import Trainer
from pilot.history.figures import SIZE, label, svg
from pilot.history.story import PoolEvent
from pilot.history.timeline import Fate, Timeline
from pilot.history.trainer_progress import ProgressPoint, TrainerProgress
from pilot.host.printable import printable
from pilot.protocol.node_names import shortened
from pilot.protocol.remaining_work import BY_SESSION
from pilot.submission.seldom import INNER_STEP_S, ROUND

if TYPE_CHECKING:
    from matplotlib.axes import Axes

CHARTS_MAX = 40
"""How many trainers get curves: those with the most samples. The table lists all of them."""

EVENTS_MAX = 2000
"""How many of the newest events are listed."""

PALETTE = ("#4e79a7", "#f28e2b", "#59a14f", "#b07aa1", "#76b7b2", "#edc948", "#9c755f", "#ff9da7", "#499894", "#d37295")
MARKS = {Fate.NOTICE: "#d4a000", Fate.GONE: "#d4a000", Fate.LOST: "#c0202a"}


@dataclass(frozen=True, slots=True)
class Life:
    """The content of the page."""

    name: str  #: of the pool
    summary: Sequence[str]  #: the pool's life, in sentences
    timeline: Timeline  #: which trainer was on which node when
    trainers: Mapping[TrainerId, Trainer]  #: by name
    progress: Mapping[TrainerId, TrainerProgress]  #: by name
    events: Sequence[PoolEvent]  #: in time order


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
        lines={node: line for line, node in enumerate(life.timeline.nodes)},
        mark_colours=MARKS,
        rows=[_row(life.trainers[name], life.progress[name]) for name in life.trainers],
        colours=colours,
        charts={name: curves_of(life.progress[name], life.timeline.end_s) for name in life.trainers if name in charted},
        without_charts=len(life.trainers) - len(charted),
        events=life.events[-EVENTS_MAX:],
        events_left_out=max(0, len(life.events) - EVENTS_MAX),
    )
    return printable(shortened(page))


def _row(trainer: Trainer, progress: TrainerProgress) -> dict[str, str]:
    paused = [rescale.paused_s for rescale in progress.rescales if rescale.paused_s is not None]
    return {
        "trainer": trainer.id,
        "state": str(trainer.phase),
        "epochs": str(trainer.epoch),
        "steps": f"{trainer.step:,}",
        "samples": f"{trainer.samples:,}",
        "node changes": str(max(0, len(progress.rescales) - 1)),
        "longest pause": f"{max(paused):.2f} s" if paused else "-",
        "repeated steps": str(trainer.counts.lost_steps),
        "reason for the end": headline(trainer.reason) if trainer.reason else "",
    }


METRICS_MAX = 6


def curves_of(progress: TrainerProgress, now_s: float) -> list[tuple[str, str]]:
    """(title, SVG) of a trainer's nodes and rate over time, and of each of its metrics over samples."""
    drawn = []
    if progress.rescales:
        ended_s = now_s if progress.ended_s is None else progress.ended_s
        drawn.append(("Nodes and samples/s over time", svg(partial(_rate, progress=progress, ended_s=ended_s), *SIZE)))
    left_out = BY_SESSION | {ROUND, INNER_STEP_S}
    names = dict.fromkeys(name for point in progress.points for name in point.metrics if name not in left_out)
    for name in list(names)[:METRICS_MAX]:
        points = [p for p in progress.points if math.isfinite(p.metrics.get(name, math.nan))]
        if points:
            drawn.append((f"{name} over samples", svg(partial(_metric, points=points, name=name), *SIZE)))
    return drawn


def _rate(axes: Axes, progress: TrainerProgress, ended_s: float) -> None:
    edges = [rescale.at_s for rescale in progress.rescales] + [max(ended_s, progress.rescales[-1].at_s)]
    axes.stairs([rescale.after for rescale in progress.rescales], edges, fill=True, color="0.85")
    axes.set(xlabel="time (s)", ylabel="nodes")
    known = [(p.at_s, p.samples_per_s) for p in progress.points if p.samples_per_s is not None]
    if known:
        rates = axes.twinx()
        rates.plot([at_s for at_s, _ in known], [rate for _, rate in known], linewidth=1)
        rates.set_ylabel("samples/s")
        rates.set_ylim(bottom=0)


def _metric(axes: Axes, points: Sequence[ProgressPoint], name: str) -> None:
    axes.plot([point.samples for point in points], [point.metrics[name] for point in points], linewidth=1)
    axes.set(xlabel="samples", ylabel=label(name))
