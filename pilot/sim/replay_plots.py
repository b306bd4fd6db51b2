"""Plots of replays as SVG (matplotlib, without a display)."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import numpy as np
from matplotlib.axes import Axes

from pilot.io.figures import label, svg
from pilot.sim.sweep import Replay

HOUR_S = 3600.0
DrawReplay = Callable[[Axes, Replay], None]


def plots_of(replay: Replay) -> list[tuple[str, str]]:
    """(title, SVG) of every plot of one replay."""
    draws: list[tuple[str, DrawReplay]] = [
        ("Pool size and use over time", _pool),
        ("U by six hours (FreeTrain Fig 10)", _efficiency),
        ("Preemption and rescale cost per event (Fig 11)", _costs),
        ("Return on rescale investment (Fig 8)", _returns),
        ("Trainer run times by curve (Fig 12)", _run_times),
        ("Solve times (wall clock)", _solves),
    ]
    drawn = [(title, _draw(functools.partial(_one, draw, replay))) for title, draw in draws]
    if replay.courses:
        strips = functools.partial(_one, _trainers, replay)
        drawn.insert(1, (f"Trainers over time{_those(replay)}", _draw(strips, height=1.0 + 0.16 * len(replay.courses))))
    return drawn


def _those(replay: Replay) -> str:
    left_out = replay.summary.submitted - len(replay.courses)
    return f" (the {len(replay.courses)} with most work)" if left_out > 0 else ""


def _one(draw: DrawReplay, replay: Replay, axes: Axes) -> None:
    draw(axes, replay)


def comparison(replays: Sequence[Replay], labels: Sequence[str]) -> str:
    """U of every replay of a sweep, as SVG."""

    def draw(axes: Axes) -> None:
        shares = [100 * (replay.summary.efficiency or 0.0) for replay in replays]
        bars = axes.barh(range(len(labels)), shares)
        axes.bar_label(bars, fmt="%.1f", padding=2)
        axes.set_yticks(range(len(labels)), map(label, labels))
        axes.invert_yaxis()
        axes.set(xlabel="U (%)", xlim=(0, max(100.0, *shares) * 1.08))

    return _draw(draw, height=1.2 + 0.28 * len(labels))


def _draw(draw: Callable[[Axes], None], height: float = 3.2) -> str:
    return svg(draw, 8, height)


def _pool(axes: Axes, replay: Replay) -> None:
    edges = replay.columns["time_s"] / HOUR_S
    axes.stairs(replay.columns["pool"][:-1], edges, fill=True, color="0.8", label="pool")
    axes.stairs(replay.columns["used"][:-1], edges, fill=True, color="tab:blue", label="training", rasterized=True)
    axes.set(xlabel="time (h)", ylabel="nodes")
    axes.legend()


def _trainers(axes: Axes, replay: Replay) -> None:
    """A strip for each: the darker, the more of the nodes that it could use it has."""
    for row, course in enumerate(replay.courses):
        ends_s = [at_s for at_s, _ in course.changes[1:]] + [course.end_s]
        held = [(a, e, nodes) for (a, nodes), e in zip(course.changes, ends_s, strict=False) if nodes and e > a]
        axes.broken_barh(
            [(start_s / HOUR_S, (end_s - start_s) / HOUR_S) for start_s, end_s, _ in held],
            (row - 0.42, 0.84),
            facecolors=[(0.12, 0.47, 0.71, 0.25 + 0.75 * min(1.0, n / course.max_nodes)) for *_, n in held],
            rasterized=True,
        )
    axes.set_yticks(range(len(replay.courses)), [label(course.trainer) for course in replay.courses], fontsize=6)
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
    axes.loglog(invested[invested > 0], np.maximum(replay.returns, 1e-3), ".", markersize=2, rasterized=True)
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
