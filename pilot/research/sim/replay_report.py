"""A replay's report: one self-contained HTML page with plots as SVG (matplotlib, without a display)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from pilot.core.errors import UserError
from pilot.history.figures import label, svg
from pilot.history.pages import figure, page, paragraph, table
from pilot.history.words import amount, duration, node_count
from pilot.research.sim.metrics import U_IN_WORDS, returns_on_rescale
from pilot.research.sim.remarks import remarks
from pilot.research.sim.sweep import Replay
from pilot.research.traces.text_files import write_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes

HOUR_S = 3600.0
WIDTH, HEIGHT = 8, 3.2
DrawReplay = Callable[..., None]
"""Draws a ``replay`` on axes."""


def plots_of(replay: Replay) -> list[tuple[str, str]]:
    """(title, SVG) of every plot of one replay."""
    shown = len(replay.busiest)
    those = f" (the {shown} with most work)" if replay.summary.submitted > shown else ""
    draws: list[tuple[str, DrawReplay, float]] = [
        ("Pool size and use over time", _pool, HEIGHT),
        *([(f"Trainers over time{those}", _trainers, 1.0 + 0.16 * shown)] if shown else []),
        ("U by six hours (FreeTrain Fig 10)", _efficiency, HEIGHT),
        ("Preemption and rescale cost per event (Fig 11)", _costs, HEIGHT),
        ("Return on rescale investment (Fig 8)", _returns, HEIGHT),
        ("Trainer run times by curve (Fig 12)", _run_times, HEIGHT),
        ("Solve times (wall clock)", _solves, HEIGHT),
    ]
    return [(title, svg(partial(draw, replay=replay), WIDTH, height)) for title, draw, height in draws]


def comparison(replays: Sequence[Replay], labels: Sequence[str]) -> str:
    """U of every replay of a sweep, as SVG."""

    def draw(axes: Axes) -> None:
        shares = [100 * (replay.summary.efficiency or 0.0) for replay in replays]
        bars = axes.barh(range(len(labels)), shares)
        axes.bar_label(bars, fmt="%.1f", padding=2)
        axes.set_yticks(range(len(labels)), map(label, labels))
        axes.invert_yaxis()
        axes.set(xlabel="U (%)", xlim=(0, max(100.0, *shares) * 1.08))

    return svg(draw, WIDTH, 1.2 + 0.28 * len(labels))


def _pool(axes: Axes, replay: Replay) -> None:
    edges = replay.columns["time_s"] / HOUR_S
    axes.stairs(replay.columns["pool"][:-1], edges, fill=True, color="0.8", label="pool")
    axes.stairs(replay.columns["used"][:-1], edges, fill=True, color="tab:blue", label="training", rasterized=True)
    axes.set(xlabel="time (h)", ylabel="nodes")
    axes.legend()


def _trainers(axes: Axes, replay: Replay) -> None:
    """Draw a strip for each trainer: the darker, the larger its share of the nodes that it could use."""
    for row, account in enumerate(replay.busiest):
        ends_s = [at_s for at_s, _ in account.changes[1:]] + [account.ended_s or replay.summary.reached_h * HOUR_S]
        held = [(a, e, nodes) for (a, nodes), e in zip(account.changes, ends_s, strict=False) if nodes and e > a]
        most = account.submission.spec.max_nodes
        axes.broken_barh(
            [(start_s / HOUR_S, (end_s - start_s) / HOUR_S) for start_s, end_s, _ in held],
            (row - 0.42, 0.84),
            facecolors=[(0.12, 0.47, 0.71, 0.25 + 0.75 * min(1.0, n / most)) for *_, n in held],
            rasterized=True,
        )
    axes.set_yticks(range(len(replay.busiest)), [label(account.trainer) for account in replay.busiest], fontsize=6)
    axes.set(xlabel="time (h); darker: more of its nodes", xlim=(0, replay.summary.reached_h or 1))
    axes.invert_yaxis()


def _efficiency(axes: Axes, replay: Replay) -> None:
    bins = replay.summary.six_hours
    axes.bar([b.start_h for b in bins], [100 * (b.efficiency or 0.0) for b in bins], width=5.4, align="edge")
    axes.set(xlabel="time (h)", ylabel="U (%)", ylim=(0, 100))
    nodes = axes.twinx()
    nodes.plot([b.start_h + 3 for b in bins], [b.eq_nodes for b in bins], "k.", label="eq nodes")
    nodes.set(ylabel="eq nodes (dots)", ylim=(0, None))


def _costs(axes: Axes, replay: Replay) -> None:
    bins = np.arange(0.0, replay.summary.reached_h + 6, 6.0)
    at_h = replay.columns["time_s"] / HOUR_S
    changed = replay.columns["joined"] + replay.columns["left"] > 0
    events = np.maximum(1, np.histogram(at_h[changed], bins)[0])
    for name in ("preemption", "rescale"):
        axes.stairs(np.histogram(at_h, bins, weights=replay.columns[name])[0] / events, bins, label=name, linewidth=1.5)
    axes.set(xlabel="time (h)", ylabel="cost per event\n(node-seconds of work)")
    axes.legend()


def _returns(axes: Axes, replay: Replay) -> None:
    invested = replay.columns["rescale"][:-1]
    axes.loglog(
        invested[invested > 0], np.maximum(returns_on_rescale(replay.columns), 1e-3), ".", markersize=2, rasterized=True
    )
    mean = replay.summary.return_on_rescale
    if mean is not None:
        axes.axhline(mean, color="tab:red", label=f"mean {mean:.1f}")
        axes.legend()
    axes.set(xlabel="rescale cost (node-seconds of work)", ylabel="work until the next event / cost")


def _run_times(axes: Axes, replay: Replay) -> None:
    rows = replay.summary.run_times
    names = [f"{row.curve}\n({row.completed})" for row in rows]
    axes.bar(names, [row.mean_h for row in rows], label="mean")
    axes.plot(names, [row.max_h for row in rows], "k_", markersize=12, label="longest")
    axes.set(xlabel="curve (completed trainers)", ylabel="run time (h)")
    if rows:
        axes.legend()


def _solves(axes: Axes, replay: Replay) -> None:
    total_s = np.sort([solve.build_s + solve.solve_s for solve in replay.solves])
    if len(total_s):
        axes.semilogx(np.maximum(total_s, 1e-5), np.arange(1, len(total_s) + 1) / len(total_s))
    axes.set(xlabel="time of one solve (s), including model building", ylabel="share of solves", ylim=(0, 1))


def make_directory(directory: Path) -> None:
    """Make the report's directory if it is missing: before a replay that takes hours, not after it."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot create the directory {directory}: {error.strerror}") from None


def write_report(
    directory: Path, title: str, replays: Sequence[Replay], labels: Sequence[str], rows: Sequence[Mapping[str, str]]
) -> Path:
    """Write ``index.html`` into ``directory`` and return its path.

    ``rows`` is the table that the command prints, one row per replay; ``labels`` name the replays.
    """
    parts = [table(rows[0], (row.values() for row in rows))]
    parts += [paragraph(U_IN_WORDS.format(unit=unit)) for unit in dict.fromkeys(r.summary.unit for r in replays)]
    if len(replays) > 1:
        parts.append(figure("U of each replay", comparison(replays, labels)))
    for replay, its_label in zip(replays, labels, strict=True):
        parts += [paragraph(its_label, "h2"), paragraph(" ".join(sentences(replay)))]
        parts += [figure(caption, drawing) for caption, drawing in plots_of(replay)]
    path = directory / "index.html"
    write_text(path, page(title, parts))
    return path


def sentences(replay: Replay) -> list[str]:
    """A replay in plain words, for readers who know neither the papers nor our terms."""
    summary, columns = replay.summary, replay.columns
    most, came, taken = int(columns["pool"].max(initial=0)), int(columns["joined"].sum()), int(columns["left"].sum())
    lines = [
        f"In {duration(summary.reached_h * HOUR_S)} of the trace up to {node_count(most)} were idle at once and"
        f" {amount(summary.eq_nodes)} on average: {amount(summary.node_hours)} node-hours."
        f" Nodes came {came:,} times and were taken {taken:,} times.",
        f"{summary.used:.0%} of that time went into training. {summary.completed:,} of {summary.submitted:,} trainers"
        f" were completed; all of them processed {summary.samples:,.0f} samples.",
    ]
    if summary.efficiency is not None:
        lines.append(
            f"They trained {summary.efficiency:.0%} of what {amount(summary.eq_nodes)} dedicated nodes would have (U)."
        )
    if (budget := replay.case.budget) is not None and summary.budget_ended_h is not None:
        lines.append(f"Then its budget of {budget:g} node-hours was used up, and the pool drained.")
    elif budget is not None:
        lines.append(f"Of its budget of {budget:g} node-hours {summary.node_hours / budget:.0%} was used.")
    lines += remarks(summary)
    return lines if summary.complete else [*lines, "The replay was interrupted before the end of the trace."]
