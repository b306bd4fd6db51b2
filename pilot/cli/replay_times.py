"""What ``pilot replay`` says about time: how long trainers waited and trained, and how long decisions took."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, median, quantiles
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from pilot.sim.sweep import Replay

DONE = 100
"""Replays are compared when one of them has completed this many trainers (Huawei Fig 11)."""


def time_row(replay: Replay) -> dict[str, str]:
    """The mean times of a replay's trainers, in minutes."""
    s = replay.summary
    means = {"waiting": s.mean_waiting_s, "training": s.mean_training_s, "total": s.mean_total_s}
    return {f"{name}, min": "-" if mean_s is None else f"{mean_s / 60:.1f}" for name, mean_s in means.items()}


def done_row(replay: Replay, replays: Sequence[Replay], heads: Sequence[str]) -> dict[str, str]:
    """How many trainers ``replay`` had completed when each of ``replays`` had completed :data:`DONE`."""
    from pilot.sim.times import done_when

    counts = [done_when(other.times, DONE, replay.times) for other in replays]
    return {head: "-" if count is None else str(count) for head, count in zip(heads, counts, strict=True)}


def warn_of_short_time(replays: Sequence[Replay], names: Sequence[str], limit_s: float) -> None:
    """Say how many plans ``limit_s`` may have cut short: the same command may then print other results.

    ``rolling-horizon`` spends half of the time on its prices, and the rest on a solver.
    """
    for replay in replays:
        slow = sum(solve.build_s + solve.solve_s > limit_s / 2 for solve in replay.solves)
        if slow:
            plans = f"{slow:,} of {len(replay.solves):,} plans took more than half of --solve-limit-s {limit_s:g}"
            told = f"{_named(replay, names)}{plans}: some may have been cut short, so another run may differ"
            click.echo(told, err=True)


def print_solve_times(replays: Sequence[Replay], names: Sequence[str]) -> None:
    """Print them on stderr, because they differ from run to run."""
    for replay in replays:
        took = sorted(solve.build_s + solve.solve_s for solve in replay.solves)
        if len(took) > 1:
            p95_s = quantiles(took, n=20)[-1]
            told = f"mean {fmean(took):.3f} s, median {median(took):.3f} s, 95th percentile {p95_s:.3f} s"
            click.echo(f"{_named(replay, names)}{len(took):,} plans: {told}, longest {took[-1]:.3f} s", err=True)


def write_times(path: Path, replays: Sequence[Replay], names: Sequence[str]) -> None:
    """Write one line per replay and ended trainer; ``names`` are the options that tell the replays apart."""
    from pilot.traces.text_files import write_text

    out = io.StringIO()
    rows = csv.writer(out, lineterminator="\n")
    rows.writerow([*names, "trainer", "submit_s", "waiting_s", "training_s", "total_s", "ending"])
    for replay in replays:
        case = [getattr(replay.case, name) for name in names]
        for one in replay.times:
            seconds = (one.submit_s, one.waiting_s, one.training_s, one.total_s)
            rows.writerow([*case, one.trainer, *(f"{value:.3f}" for value in seconds), one.ending.value])
    write_text(path, out.getvalue())


def _named(replay: Replay, names: Sequence[str]) -> str:
    """What distinguishes it from the other replays."""
    return ", ".join(f"{getattr(replay.case, name)}" for name in names) + ": "
