"""The report of a soak: a table with the medians of each hour, and a plot of all samples."""

from __future__ import annotations

import math
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from tests.soak.samples import POOL, Sample
from tests.soak.trends import SETTLED_S, Trend

_PER_PROCESS = ("anonymous MiB", "PSS MiB", "open files", "sockets", "threads")


def table(found: list[Trend]) -> str:
    """A line for each quantity of each role."""
    hours = max((len(trend.by_hour) for trend in found), default=0)
    heads = "".join(f"{f'hour {hour + 1}':>9}" for hour in range(hours))
    lines = [f"{'who':<12}{'what':<25}{heads}{'per hour':>18}{'bound':>7}  verdict"]
    for trend in found:
        medians = "".join(f"{value:9.2f}" for value in trend.by_hour) + " " * 9 * (hours - len(trend.by_hour))
        known = math.isfinite(trend.error)
        slope = f"{trend.slope:+9.2f} ± {trend.error:6.2f}" if known else f"{'-':>18}"
        bound = "" if trend.bound is None else f"{trend.bound:g}"
        lines.append(f"{trend.who:<12}{trend.quantity:<25}{medians}{slope}{bound:>7}  {trend.verdict}")
    return "\n".join(lines)


def plot(samples: list[Sample], path: Path) -> None:
    """A row per role, a line per process; the last rows are the pool's."""
    roles = list(dict.fromkeys(sample.who for sample in samples if sample.who != POOL))
    of_pool = list(dict.fromkeys(sample.quantity for sample in samples if sample.who == POOL))
    panels = [(who, quantity) for who in roles for quantity in _PER_PROCESS] + [(POOL, name) for name in of_pool]
    columns = len(_PER_PROCESS)
    rows = math.ceil(len(panels) / columns)
    figure, axes = plt.subplots(rows, columns, figsize=(4 * columns, 2.2 * rows), squeeze=False, layout="constrained")
    for axis in axes.flat[len(panels) :]:
        axis.set_visible(False)
    for axis, (who, quantity) in zip(axes.flat, panels, strict=False):
        lines = dict[int, list[Sample]]()
        for sample in samples:
            if (sample.who, sample.quantity) == (who, quantity):
                lines.setdefault(sample.pid, []).append(sample)
        for line in lines.values():
            axis.plot([s.at_s / 60 for s in line], [s.value for s in line], linewidth=0.8)
        axis.axvline(SETTLED_S / 60, color="grey", linestyle=":")
        axis.set_title(f"{who}: {quantity}", fontsize=8)
        axis.set_ylim(bottom=0)
        axis.tick_params(labelsize=7)
    figure.supxlabel("minutes")
    figure.savefig(path, dpi=80)
    plt.close(figure)
